package daemon

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/secret"
)

const maxCanaryBytes = 4 << 10

// readCanaries reads the texts that nothing may send; nil where there are none.
func readCanaries(c *config.Config) (*secret.Canaries, error) {
	if len(c.File.Canaries) == 0 {
		return nil, nil
	}
	var all []secret.Canary
	for _, one := range c.File.Canaries {
		path := c.Relative(one.File)
		text, err := readPrivate(path)
		if err != nil {
			return nil, fmt.Errorf("canary %s: %w", one.Name, err)
		}
		all = append(all, secret.Canary{Name: one.Name, Text: text})
	}
	found, err := secret.NewCanaries(all)
	if err != nil {
		return nil, hint.Misused(err, "correct canaries in "+c.Path+", and the files that it names")
	}
	return found, nil
}

// readPrivate reads a small file that nobody else may read: who can read a canary can
// leave it out.
func readPrivate(path string) ([]byte, error) {
	text, err := durable.Read(path, maxCanaryBytes)
	if err != nil {
		return nil, hint.Failed(err, "write the text into "+path+", with mode 0600")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil, hint.Failed(fmt.Errorf("%s can be read by others than its owner", path), "chmod 600 "+path)
	}
	return text, nil
}

// alarm tells the operator that a canary was found: a few times a second at most, since
// a program can go on and on. The log has all of them.
func (d *Daemon) alarm(a egress.Alarm) {
	ok, more := d.alarms.Take(1, time.Now())
	if !ok && more == 0 {
		return
	}
	who := a.Sandbox
	if a.Program != "" {
		who += " (" + filepath.Base(a.Program) + ")"
	}
	fmt.Fprintf(d.Talk, "egressd: ALARM: %s tried to send the canary %s to %s, in its %s (%s); it was stopped\n",
		printable.Text(cmp.Or(who, "nobody known")), a.Canary, printable.Text(cmp.Or(a.Destination, "an unknown place")), printable.Text(a.Where), a.Encoding)
	if more > 1 {
		fmt.Fprintf(d.Talk, "egressd: ALARM: %d alarms since the last one\n", more)
	}
	fmt.Fprintf(d.Talk, "egressd: hint: egressd why %s\n", a.ID)
}
