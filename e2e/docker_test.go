package e2e

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/lab/engine"
)

// TestAContainerOfDockersOwnGetsOut shows that there is a way out to be closed: the far hosts
// answer a container that nobody holds.
func TestAContainerOfDockersOwnGetsOut(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	c := w.contain(t, engine.Shell)
	out := w.probe(t, c, "direct http://"+evilIPv4+"/", "tcp "+evilIPv4+":443", "dns "+resolver+" a.allowed.test")
	if strings.Count(out, "200 OK") != 1 || strings.Count(out, "connected") != 1 || strings.Count(out, "answered") != 1 {
		t.Errorf("printed %q", out)
	}
}
