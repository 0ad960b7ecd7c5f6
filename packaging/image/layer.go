package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is who egressd is in the image. There is no /etc/passwd to name it.
const user = 65532

// An archiveFile is a file of an archive, or a folder where the name ends in a slash.
type archiveFile struct {
	name  string
	mode  int64
	owner int
	text  []byte
}

// epoch is the time of every file, so that the same files are the same archive.
var epoch = time.Unix(0, 0)

// layer is the file system of the image.
func layer(binary []byte) []archiveFile {
	return []archiveFile{
		{"etc/", 0o755, 0, nil},
		{"etc/egressd/", 0o755, 0, nil},
		{"etc/ssl/", 0o755, 0, nil},
		{"etc/ssl/certs/", 0o755, 0, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, roots()},
		{"run/", 0o755, 0, nil},
		{"run/egressd/", 0o755, user, nil},
		{"tmp/", 0o1777, 0, nil},
		{"usr/", 0o755, 0, nil},
		{"usr/bin/", 0o755, 0, nil},
		{"usr/bin/egressd", 0o755, 0, binary},
		{"var/", 0o755, 0, nil},
		{"var/lib/", 0o755, 0, nil},
		{"var/lib/egressd/", 0o700, user, nil},
	}
}

// roots are the authorities of Mozilla's list, of the version in go.sum and not of
// the machine that builds. Those that Mozilla trusts in part only are left out: a PEM
// file cannot say that.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // into memory
		}
	}
	return all.Bytes()
}

// archive writes entries as a tar archive, in their order.
func archive(entries []archiveFile) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, ModTime: epoch, Size: int64(len(e.text)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.name, err)
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// checkBinary refuses what could not be started in an empty file system, and
// returns the processor it is for, as Go names it.
func checkBinary(text []byte) (arch string, err error) {
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("it is not linked statically; build it with CGO_ENABLED=0")
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("it is for %s", f.Machine)
}
