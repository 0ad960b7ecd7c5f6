package sandbox

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Stage() // the tests make jails
	os.Exit(m.Run())
}
