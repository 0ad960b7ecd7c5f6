package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// runPolicy is that of most tests of egressd run.
const runPolicy = `version: 1
allow:
  - "*.allowed.test"
  - "ssh.allowed.test:22"
  - "db.allowed.test:5432"
  - 93.184.216.34:443
  - 93.184.216.34:7000
`

// A ran is what came of egressd run.
type ran struct {
	out, talk string
	code      int
	records   []egress.Record
}

// users are who starts egressd run: whoever runs the tests, as root over the lab,
// and an ordinary user without any privilege.
var users = map[string][]string{
	"root": nil,
	"user": {"unshare", "--user", "--map-user=1000", "--map-group=1000"},
}

// jailed returns the command for a program under egressd run, in the gateway.
func (d *daemon) jailed(ctx context.Context, user string, flags []string, argv ...string) *exec.Cmd {
	words := slices.Concat(users[user], []string{os.Getenv(binaryVariable), "run", "--config", d.config}, flags, []string{"--"}, argv)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	return cmd
}

// runAs runs a shell script under egressd run.
func (d *daemon) runAs(t *testing.T, user, script string, flags ...string) *ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := d.jailed(ctx, user, flags, "sh", "-c", script)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	var exit *exec.ExitError
	if err := d.world.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, talk.String())
	}
	r := &ran{out: out.String(), talk: talk.String(), code: cmd.ProcessState.ExitCode()}
	r.records = d.lastRun(t)
	return r
}

// lastRun returns the records of the newest run.
func (d *daemon) lastRun(t *testing.T) []egress.Record {
	t.Helper()
	runs, err := filepath.Glob(filepath.Join(d.dir, "runs", "*"))
	if err != nil || len(runs) == 0 {
		return nil
	}
	slices.Sort(runs)
	log := &auditLog{dir: runs[len(runs)-1]}
	records, err := log.since(0)
	if problems := log.flawed(); err != nil || len(problems) > 0 {
		t.Errorf("%v %q", err, problems)
	}
	return records
}

// denied counts the records that deny host, which is a name or an address.
func (r *ran) denied(host string, class policy.Class) (n int) {
	for _, rec := range r.records {
		if rec.Dst != nil && rec.Dst.Host == host && rec.Decision != nil && rec.Decision.Class == string(class) {
			n++
		}
	}
	return n
}

func TestRunReachesWhatIsAllowed(t *testing.T) {
	d := newDaemon(t, runPolicy)
	for user := range users {
		for _, flags := range [][]string{nil, {"--redirect"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				r := d.runAs(t, user, `curl -sS -m9 http://a.allowed.test/x; echo; curl -sS -m9 --cacert lab.pem https://a.allowed.test/y`, flags...)
				if r.code != 0 || strings.Count(r.out, "origin") < 2 {
					t.Fatalf("exit %d, %q, %q", r.code, r.out, r.talk)
				}
			})
		}
	}
}
