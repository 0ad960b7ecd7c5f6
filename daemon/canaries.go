package daemon

import (
	"fmt"
	"os"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
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
