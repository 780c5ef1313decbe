// Command golocks reads jobs from its input, one per line, runs them with one kind of locks, and replies on its output. The
// protocol is that of the workers in Rust, see job.rs.
package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	locks, err := connect(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("ready")
	for jobs := bufio.NewScanner(os.Stdin); jobs.Scan(); {
		if done, err := answer(locks, jobs.Text()); err != nil {
			fmt.Println("failed", err)
		} else {
			fmt.Println("done", done)
		}
	}
}

func answer(locks locks, line string) (string, error) {
	job, err := parse(line)
	if err != nil {
		return "", err
	}
	return job.run(locks)
}
