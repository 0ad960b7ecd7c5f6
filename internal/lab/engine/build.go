package engine

import (
	"fmt"
	"os"
	"os/exec"
)

// BuildProbe builds the program of the package probe. It is for the outside of the
// lab, in a folder of this module.
func BuildProbe(path string) error {
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "github.com/egressd/egressd/internal/lab/engine/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the probe: %w: %s", err, out)
	}
	return nil
}
