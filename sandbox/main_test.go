package sandbox

import (
	"os"
	"testing"

	"github.com/egressd/egressd/internal/stage"
)

func TestMain(m *testing.M) {
	stage.Run() // the tests make jails
	os.Exit(m.Run())
}
