package inspect

import (
	"crypto/tls"
	"fmt"
	"testing"
)

func TestSessionsAreKeptForSoManySandboxes(t *testing.T) {
	i := &inspection{sessions: map[string]tls.ClientSessionCache{}}
	for n := range 3 * sessionsSandboxes {
		i.sessionsOf(fmt.Sprint(n))
	}
	if n := len(i.sessions); n > sessionsSandboxes || n == 0 {
		t.Errorf("the sessions of %d sandboxes are kept", n)
	}
}
