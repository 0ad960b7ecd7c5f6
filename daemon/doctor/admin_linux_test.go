package doctor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy/file"
)

// TestDoctorLooksWhoCouldComeToTheOperatorsListener makes what it finds worse step by step.
func TestDoctorLooksWhoCouldComeToTheOperatorsListener(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	folder := filepath.Join(t.TempDir(), "admin")
	socket := filepath.Join(folder, "admin.sock")
	token := filepath.Join(state, "egressd", "admin", "127.0.0.1-9464.token")
	for _, step := range []struct {
		admin string
		do    func() error
		says  string
		wrong bool
	}{
		{"unix:" + socket, func() error { return nil }, "is made by the next egressd serve", false},
		{"unix:" + socket, func() error { return os.Mkdir(folder, 0o700) }, "which does not run", false},
		{"unix:" + socket, func() error {
			l, err := net.Listen("unix", socket)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return errors.Join(err, os.Chmod(socket, 0o600))
		}, "is its owner's alone", false},
		{"unix:" + socket, func() error { return os.Chown(folder, 1234, 1234) }, "belongs to another user", true},
		{"unix:" + socket, func() error { return os.Chown(socket, 1234, 1234) }, "is its owner's alone (uid 1234)", false},
		{"unix:" + socket, func() error { return os.Chmod(socket, 0o660) }, "is not a socket of its owner alone", true},
		{"unix:" + socket, func() error { return os.Chmod(folder, 0o777) }, "could be replaced: others may write in " + folder, true},
		{"127.0.0.1:9464", func() error { return nil }, "the token, is made by the next", false},
		{"127.0.0.1:9464", func() error {
			return errors.Join(os.MkdirAll(filepath.Dir(token), 0o700), os.WriteFile(token, nil, 0o600))
		}, "takes the token in " + token, false},
		{"127.0.0.1:9464", func() error { return os.Chmod(token, 0o644) }, "others may have the token", true},
		{"127.0.0.1:9464", func() error { return os.Chown(token, 1234, 1234) }, "belongs to uid 1234", true},
		{"127.0.0.1:9464", func() error { return errors.Join(os.Chmod(token, 0o600), os.Chown(filepath.Dir(token), 1234, 1234)) }, "takes the token in " + token, false},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		all := adminFindings(&config.Config{File: &file.File{Listen: file.Listen{Admin: step.admin}}})
		if len(all) != 1 || !strings.Contains(all[0].Says, step.says) || (all[0].Fix != "") != step.wrong {
			t.Errorf("%+v, want %q", all, step.says)
		}
	}
	if all := adminFindings(&config.Config{File: &file.File{Listen: file.Listen{Admin: file.NoAdmin}}}); len(all) != 0 {
		t.Errorf("without a listener: %+v", all)
	}
}
