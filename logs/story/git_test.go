package story

import (
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

func TestWhatWasAskedOfAGitServer(t *testing.T) {
	none, a, b := strings.Repeat("0", 40), strings.Repeat("a", 40), strings.Repeat("b", 40)
	s := &Story{Records: []*record.Record{{}, {Git: &record.Git{Op: "push", Repo: "acme/web", Refs: []string{
		none + " " + a + " refs/heads/new", a + " " + none + " refs/heads/old", a + " " + b + " refs/heads/main", "unread",
	}}}}}
	want := []string{"push, acme/web", "create refs/heads/new at " + a, "delete refs/heads/old, which is " + a, "move refs/heads/main from " + a + " to " + b, "unread"}
	if got := s.Git(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := new(Story).Git(); got != nil {
		t.Errorf("without records: %q", got)
	}
}
