package containers

import (
	"context"
	"errors"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// A dockerWorld is a world whose gateway is the host of Docker's engine. It is another than
// that of the other tests, since the engine has its host forward packets.
type dockerWorld struct {
	*world.World
	*engine.Engine
}

// theEngine starts the engine at its first call; it runs until all tests have ended.
// It returns nil where there is none, as for a user who is not root; the test is to
// return then.
func theEngine(t *testing.T) *dockerWorld {
	t.Helper()
	if err := engine.Usable(); err != nil {
		t.Logf("nothing is tested: %v", err)
		return nil
	}
	w, err := openEngine()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// started is the engine that openEngine has started.
var started *dockerWorld

var openEngine = sync.OnceValues(func() (*dockerWorld, error) {
	w, err := world.New()
	if err != nil {
		return nil, err
	}
	e, err := engine.Start(w.Gateway.Start, world.Probe.Path())
	if err != nil {
		return nil, err
	}
	started = &dockerWorld{w, e}
	if err := errors.Join(e.Plug("docker-compose", world.Compose.Path()), e.Plug("docker-buildx", world.Buildx.Path())); err != nil {
		return nil, err
	}
	return started, started.serveOnHost()
})

func closeEngine() error {
	if started == nil {
		return nil
	}
	return started.Engine.Close()
}

// docker runs a command of docker(1) that has to succeed, and returns what it printed.
func (w *dockerWorld) docker(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also in a Cleanup
	defer cancel()
	out, err := w.Docker(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// contain starts a container that ends with the test: docker run -d with the
// arguments. It returns its ID.
func (w *dockerWorld) contain(t *testing.T, args ...string) string {
	t.Helper()
	id := w.docker(t, append([]string{"run", "-d"}, args...)...)
	t.Cleanup(func() { w.docker(t, "rm", "-f", id) })
	return id
}

// probe runs the probe in a container, with a way out for each argument, and returns what
// came of each: a line each.
func (w *dockerWorld) probe(t *testing.T, container string, ways ...string) string {
	t.Helper()
	return w.docker(t, append([]string{"exec", container, engine.ProbePath}, ways...)...)
}

// serveAnew starts egressd serve, or starts it once more.
func serveAnew(t *testing.T, d *world.Daemon) {
	t.Helper()
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
}
