package cli

import (
	"errors"
	"testing"

	"github.com/egressd/egressd/internal/hint"
)

func TestOnLinuxSaysWhatToUseInstead(t *testing.T) {
	cmd := OnLinux(125, "run", "Run a program", "egressd serve")
	cmd.SetArgs([]string{"--learn", "--", "make"})
	var failed *hint.Error
	if err := cmd.Execute(); !errors.As(err, &failed) || failed.Code != 125 || failed.Hint != "egressd serve" {
		t.Errorf("it returns %#v", err)
	}
}
