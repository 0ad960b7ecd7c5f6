//go:build linux

package attach

import (
	"os"
	"testing"

	"github.com/egressd/egressd/internal/jailinit"
)

func TestMain(m *testing.M) {
	jailinit.Run() // tests make jails, whose processes are this program
	os.Exit(m.Run())
}
