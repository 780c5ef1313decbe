#!/usr/bin/env bash
# miniredis 2.40.0: `HKEYS` is sorted by field and `HVALS` by value, so the n-th value does not belong to the n-th field.
# `HGETALL` pairs them. A script that pairs both lists works on Redis, which returns them in one order.
#
# From the Go module github.com/alicebob/miniredis/v2 v2.40.0 (requires Go).
#
# Output seen:
#
#   HKEYS a b, HVALS 1 2, HGETALL a 2 b 1
set -euo pipefail

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"

cat >go.mod <<'MODULE'
module finding

go 1.21

require github.com/alicebob/miniredis/v2 v2.40.0
MODULE
cat >main.go <<'GO'
package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	connection, err := net.Dial("tcp", server.Addr())
	if err != nil {
		panic(err)
	}
	replies := bufio.NewReader(connection)
	line := func() string {
		text, err := replies.ReadString('\n')
		if err != nil {
			panic(err)
		}
		return strings.TrimSpace(text)
	}
	send := func(words ...string) {
		fmt.Fprintf(connection, "*%d\r\n", len(words))
		for _, word := range words {
			fmt.Fprintf(connection, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	// Returns the texts of a reply that is an array.
	list := func(name string) string {
		send(name, "hash")
		var count int
		fmt.Sscanf(line(), "*%d", &count)
		texts := []string{name}
		for range make([]struct{}, count) {
			line()
			texts = append(texts, line())
		}
		return strings.Join(texts, " ")
	}
	send("HSET", "hash", "a", "2", "b", "1")
	line()
	fmt.Printf("%s, %s, %s\n", list("HKEYS"), list("HVALS"), list("HGETALL"))
}
GO
GOFLAGS=-mod=mod GOMODCACHE=$folder/modules go run . >seen 2>errors || { cat errors >&2; exit 1; }
cat seen
cd - >/dev/null
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") "$folder/seen"
