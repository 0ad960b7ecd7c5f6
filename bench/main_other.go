//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: error: this harness reads /proc and uses epoll, so it measures on Linux only")
	os.Exit(1)
}
