package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// TestTheOperatorsTokenIsAnotherAtEachStart: whoever had the port in between may have been
// shown the one before. It has other things in the place of its file.
func TestTheOperatorsTokenIsAnotherAtEachStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "egressd", "admin", "127.0.0.1-9464.token")
	before, err := makeToken(path)
	if err != nil || !regexp.MustCompile(`^egressd-admin-[A-Z2-7]{52}$`).MatchString(before) {
		t.Fatalf("made %q, %v", before, err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for says, plant := range map[string]func() error{
		"the one before":       func() error { return nil },
		"others may read it":   func() error { return os.Chmod(path, 0o644) },
		"one of a person":      func() error { return os.WriteFile(path, []byte("egressd-admin-password\n"), 0o600) },
		"a link":               func() error { return errors.Join(os.Remove(path), os.Symlink(elsewhere, path)) },
		"a file of great size": func() error { return os.WriteFile(path, make([]byte, 4<<10), 0o600) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		made, err := makeToken(path)
		if err != nil || made == before {
			t.Errorf("%s: made %q, %v", says, made, err)
		}
		before = made
		if text, err := os.ReadFile(path); err != nil || string(text) != made+"\n" {
			t.Errorf("%s: the file has %.80q, %v", says, text, err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: its file: %v, %v", says, info, err)
		}
	}
	if _, err := os.Stat(elsewhere); err == nil {
		t.Error("what a link led to was written")
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if made, err := makeToken(path); err == nil {
		t.Errorf("in the place of a folder: made %q", made)
	}
}

func TestWhatIsMissingForReadinessIsNamed(t *testing.T) {
	d := &Daemon{Talk: io.Discard}
	d.connect()
	if why := d.admin.missing(); !slices.Equal(why, []string{"no policy is in force"}) {
		t.Errorf("before the start: %q", why)
	}
	d.current.putInForce(policy.New(), &config.Config{}, "loaded")
	if why := d.admin.missing(); len(why) != 0 {
		t.Errorf("in force: %q", why)
	}
	late := &config.Lapse{Label: "policy.tar.gz", At: time.Now().Add(time.Hour)}
	d.current.putInForce(policy.New(), &config.Config{Lapses: []*config.Lapse{late}}, "reloaded")
	if why := d.admin.missing(); len(why) != 0 {
		t.Errorf("with a bundle that counts: %q", why)
	}
	late.At = time.Now().Add(-time.Second)
	if why := d.admin.missing(); len(why) != 1 || !strings.Contains(why[0], "stale") {
		t.Errorf("with a bundle that has expired: %q", why)
	}
	d.current.putInForce(policy.New(), &config.Config{}, "reloaded")
	d.admin.isLost("127.0.0.1:3128", io.EOF)
	d.admin.stopping.Store(true)
	if why := d.admin.missing(); !slices.Equal(why, []string{"egressd is stopping", "127.0.0.1:3128 is not served"}) {
		t.Errorf("later: %q", why)
	}
}

func TestAReloadThatFailedIsShownUntilOneIsInForce(t *testing.T) {
	d := &Daemon{Talk: io.Discard}
	d.connect()
	d.current.putInForce(policy.New(), &config.Config{File: new(file.File)}, "loaded")
	d.current.reloaded(errors.New("line 3 " + strings.Repeat("x", 5000)))
	s := d.current.Load().show()
	if s.OK || s.Rejected == nil || !s.Rejected.Current || len(s.Rejected.Reason) > 1000 || s.Source != "loaded" {
		t.Errorf("after a failure: %+v", s)
	}
	d.current.putInForce(policy.New(), &config.Config{File: new(file.File)}, "reloaded")
	d.current.reloaded(nil)
	now := d.current.Load()
	if s = now.show(); !s.OK || s.Rejected == nil || s.Rejected.Current || s.Source != "reloaded" || time.Since(s.Since) > time.Minute || now.reloads != 2 || now.failed != 1 {
		t.Errorf("after another: %+v", s)
	}
}

func TestTheOperatorsSocketNeedsAKernelThatTellsNetworksApart(t *testing.T) {
	defer func(before func() error) { tellsNetworksApart = before }(tellsNetworksApart)
	tellsNetworksApart = func() error { return errors.ErrUnsupported }
	path := filepath.Join(t.TempDir(), "operator", "admin.sock")
	d := new(Daemon)
	d.connect()
	l, err := d.listeners.openAdminSocket(path)
	if err == nil || !strings.Contains(err.Error(), "Linux 5.14") {
		t.Errorf("it listens at %v, %v", l, err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("there is a socket")
	}
}

func TestAReloadIsRefusedOnceNobodyTakesOrders(t *testing.T) {
	d := &Daemon{}
	d.connect()
	d.admin.orders, d.admin.ended = make(chan order), make(chan struct{})
	busy, cancel := context.WithCancel(t.Context())
	cancel()
	var why *admin.Unavailable
	if _, err := d.admin.reloadFor(busy, "test"); !errors.As(err, &why) || why.Status != 503 || !strings.Contains(why.Why, "busy") {
		t.Errorf("while another goes on: %v", err)
	}
	waits := make(chan error, 1)
	go func() { _, err := d.admin.reloadFor(t.Context(), "test"); waits <- err }()
	d.admin.isEnding()
	d.admin.isEnding()
	if err := <-waits; !errors.As(err, &why) || why.Status != 503 || !strings.Contains(why.Why, "stopping") {
		t.Errorf("at the end: %v", err)
	}
	d.admin.ended = nil
	late, cancel := context.WithCancel(t.Context())
	go func() { <-d.admin.orders; cancel() }()
	if _, err := d.admin.reloadFor(late, "test"); !errors.As(err, &why) || why.Status != 504 {
		t.Errorf("one that goes on: %v", err)
	}
}

func TestBundlesOfOneLabelAreOneSeries(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	got := byLabel([]policystatus.Bundle{
		{Source: "a", Heard: late}, {Source: "b", Stale: "old"}, {Source: "a", Stale: "too old", Heard: early}, {Source: "a"}, {Source: "b", Heard: late},
	})
	want := []policystatus.Bundle{{Source: "a", Stale: "too old", Heard: early}, {Source: "b", Stale: "old", Heard: late}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
	if all := byLabel(nil); len(all) != 0 {
		t.Errorf("of none: %+v", all)
	}
}
