package daemon

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/policy"
)

// TestTheOperatorsTokenIsMadeOnceAndKeptToItself has files in its place that are not what
// egressd makes.
func TestTheOperatorsTokenIsMadeOnceAndKeptToItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "egressd", "admin.token")
	made, err := operatorToken(path)
	if err != nil || !regexp.MustCompile(`^egressd-admin-[A-Z2-7]{52}$`).MatchString(made) {
		t.Fatalf("made %q, %v", made, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("its file: %v, %v", info, err)
	}
	if again, err := operatorToken(path); err != nil || again != made {
		t.Errorf("read %q, %v", again, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for says, plant := range map[string]func() error{
		"others may read it":   func() error { return errors.Join(os.WriteFile(path, text, 0o600), os.Chmod(path, 0o640)) },
		"nothing in it":        func() error { return os.WriteFile(path, nil, 0o600) },
		"a short one":          func() error { return os.WriteFile(path, text[:40], 0o600) },
		"one of a person":      func() error { return os.WriteFile(path, []byte("egressd-admin-password\n"), 0o600) },
		"two":                  func() error { return os.WriteFile(path, slices.Concat(text, text), 0o600) },
		"a link":               func() error { return os.Symlink("elsewhere", path) },
		"a folder":             func() error { return os.Mkdir(path, 0o700) },
		"a file of great size": func() error { return os.WriteFile(path, make([]byte, 1<<20), 0o600) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if got, err := operatorToken(path); err == nil {
			t.Errorf("%s: taken for %q", says, got)
		}
	}
}

func TestWhatIsMissingForReadinessIsNamed(t *testing.T) {
	d := &Daemon{Talk: io.Discard}
	if why := d.missing(); !slices.Equal(why, []string{"no policy is in force"}) {
		t.Errorf("before the start: %q", why)
	}
	d.putInForce(policy.New(), &config.Config{}, "loaded")
	if why := d.missing(); len(why) != 0 {
		t.Errorf("in force: %q", why)
	}
	d.isLost("127.0.0.1:3128", io.EOF)
	d.operator.stopping.Store(true)
	if why := d.missing(); !slices.Equal(why, []string{"egressd is stopping", "127.0.0.1:3128 is not served"}) {
		t.Errorf("later: %q", why)
	}
}

func TestAReloadThatFailedIsShownUntilOneIsInForce(t *testing.T) {
	d := &Daemon{Talk: io.Discard}
	d.putInForce(policy.New(), &config.Config{}, "loaded")
	d.reloaded(errors.New("line 3 " + strings.Repeat("x", 5000)))
	s := d.operator.now.Load().show()
	if s.OK || s.Rejected == nil || !s.Rejected.Current || len(s.Rejected.Reason) > 1000 || s.Source != "loaded" {
		t.Errorf("after a failure: %+v", s)
	}
	d.putInForce(policy.New(), &config.Config{}, "reloaded")
	d.reloaded(nil)
	now := d.operator.now.Load()
	if s = now.show(); !s.OK || s.Rejected == nil || s.Rejected.Current || s.Source != "reloaded" || time.Since(s.Since) > time.Minute || now.reloads != 2 || now.failed != 1 {
		t.Errorf("after another: %+v", s)
	}
}
