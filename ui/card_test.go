package ui

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestACardShowsTheProgramsThatSentMost, and how many it leaves out.
func TestACardShowsTheProgramsThatSentMost(t *testing.T) {
	var c sandboxCard
	for i, program := range []string{"chrome", "claude", "git", "go", "npm", "pip"} {
		c.sent(program, int64(i))
	}
	c.sent("rclone", 1000)
	c.rank()
	if want := []string{"rclone", "pip", "npm", "go", "git", "claude"}; !slices.Equal(c.Programs, want) || c.MorePrograms != 1 {
		t.Errorf("%v and %d more, want %v", c.Programs, c.MorePrograms, want)
	}
}

// TestTheEndOfARequestIsOfItsLevel, whose record has the request and the server name of its tunnel.
func TestTheEndOfARequestIsOfItsLevel(t *testing.T) {
	r := &record.Record{
		Kind: record.KindClose, Decision: &record.Decision{Action: "allow", Rule: "allow[0]", Layer: string(policy.User)},
		Dst: &record.Destination{Host: "a.test", Port: 443}, TLS: &record.TLS{SNI: "a.test", Inspected: true}, HTTP: &record.HTTP{Method: "GET", Path: "/"},
	}
	if got := levelOf(r); got != contentSeen {
		t.Errorf("%s", got.Name())
	}
	if r.HTTP = nil; levelOf(r) != hostOnly {
		t.Error("a tunnel")
	}
}
