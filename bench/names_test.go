//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAnswersAreChecked asks bench's own name server, which tells addresses of the
// origin and that other names do not exist.
func TestAnswersAreChecked(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serveDNS(pc) }()
	t.Cleanup(func() { pc.Close(); <-served })
	s := &nameServer{at: pc.LocalAddr().String(), cpu: func() (time.Duration, error) { return 0, nil }}
	var asked atomic.Uint64
	for _, j := range nameJobs() {
		c, err := s.cell(context.Background(), j, &asked, 200*time.Millisecond)
		switch refused := j.rcode == refusedName; {
		case refused && (err == nil || !strings.Contains(err.Error(), "the response code is 3, not 5")):
			t.Errorf("%s: a name server that refuses nothing came to %+v, %v", j.name, c, err)
		case !refused && (err != nil || c.Ops == 0 || c.Errors > 0):
			t.Errorf("%s: %+v, %v", j.name, c, err)
		}
	}
	if nameJobs()[2].ask(1) == nameJobs()[2].ask(2) {
		t.Error("a name is asked for twice")
	}
}

func TestStartsAreComparedWithTheProgramAlone(t *testing.T) {
	here := t.TempDir() // without any sandbox, which may not work on this machine
	for _, program := range []string{"true", "false"} {
		path, err := exec.LookPath(program)
		if err == nil {
			err = os.Symlink(path, filepath.Join(here, program))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", here)
	b := &bench{errOut: io.Discard, base: t.TempDir(), options: options{starts: 3}}
	rows, err := b.measureStarts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || len(b.absent) != 2 || rows[0].Proxy != direct || !(rows[0].Value > 0) || rows[0].Added != nil {
		t.Fatalf("rows are %+v", rows)
	}
	failing := &launcher{"false", []string{"false"}}
	if _, err := failing.run(t.Context(), b.base); err == nil {
		t.Error("a program that fails was measured")
	}
}
