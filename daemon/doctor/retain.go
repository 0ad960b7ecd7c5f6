package doctor

import (
	"fmt"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/quantity"
)

// boundFinding compares the space that the log in dir may take with the free space of its disk.
func boundFinding(c *config.Config, dir string) Finding {
	kept, byDefault, err := c.Retained()
	if err != nil {
		return Finding{"log", err.Error(), "ls -ld " + dir}
	}
	says := dir
	switch {
	case byDefault:
		says += ", at most " + quantity.Bytes(kept.Bytes) + " of it, since audit.retain is not set"
	case kept.All:
		says += ", all of it"
	case kept.Bytes > 0:
		says += ", at most " + quantity.Bytes(kept.Bytes) + " of it"
	}
	free, size, err := audit.Space(dir)
	if err == nil && free < audit.Floor(size) {
		return Finding{"log", fmt.Sprintf("%s; its disk has %s free, so denials are summed sooner", says, quantity.Bytes(free)), "free space there, or lower audit.retain.bytes"}
	}
	return Finding{Check: "log", Says: says}
}
