// Command image writes a container image of egressd without a container engine: a
// tar archive that docker load and podman load take, and that is an OCI image
// layout as well. The same binary gives the same bytes.
//
//	go run ./packaging/image -binary build/egressd -o build/egressd-image.tar
//
// In the image are the binary, the certificates of public authorities, folders for
// the policy and for what egressd keeps, and nothing else: no shell, no users.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/egressd/egressd/internal/durable"
)

func main() {
	binary := flag.String("binary", "build/egressd", "static `FILE` to put into the image")
	out := flag.String("o", "build/egressd-image.tar", "`FILE` to write")
	tag := flag.String("tag", "egressd:latest", "`NAME` of the image")
	flag.Parse()
	if err := write(*binary, *out, *tag); err != nil {
		fmt.Fprintf(os.Stderr, "image: error: %v\nimage: hint: make image\n", err)
		os.Exit(1)
	}
}

func write(binary, out, tag string) error {
	text, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	arch, err := checkBinary(text)
	if err != nil {
		return fmt.Errorf("%s: %w", binary, err)
	}
	archive, err := build(text, arch, tag)
	if err != nil {
		return err
	}
	if err := durable.Replace(out, archive, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %s for linux/%s, made with %s\n", out, tag, arch, runtime.Version())
	return nil
}
