package containers

import (
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

func TestMain(m *testing.M) {
	world.Main(m, world.Suite{
		Programs: []world.Program{world.Probe, world.Imager, world.Compose, world.Buildx},
		Modes:    map[string]world.Mode{filteredArgument: filtered},
		Close:    closeEngine,
	})
}
