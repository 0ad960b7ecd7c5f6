package daemon

import (
	"fmt"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs/sink"
)

// WitnessesOf are the witnesses of the file, with what it points to.
func WitnessesOf(c *config.Config) ([]sink.Witness, error) {
	var all []sink.Witness
	for _, w := range c.File.Audit.Witnesses {
		roots, err := authorities(c, w.CAFile)
		if err != nil {
			return nil, hint.Misused(fmt.Errorf("witness %s: %w", w.URL, err), "correct audit.witnesses in "+c.Path)
		}
		all = append(all, sink.Witness{URL: w.URL, Key: w.Key, Every: w.Every, Roots: roots})
	}
	if err := sink.CheckWitnesses(all); err != nil {
		return nil, hint.Misused(err, "correct audit.witnesses in "+c.Path)
	}
	return all, nil
}
