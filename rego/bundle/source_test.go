package bundle

import (
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fieldtest"
)

func typicalSource() *Source {
	return &Source{URL: "https://a.test/b", Key: Key{PEM: []byte("key"), Algorithm: "EdDSA", Scope: "s"}, CA: []byte("ca"), TokenFile: "t", Refresh: time.Hour, MaxAge: time.Hour}
}

// TestSourcesThatDifferHaveNoFeedInCommon changes each field of a source. What was signed with
// another key, or came from elsewhere, is kept elsewhere too.
func TestSourcesThatDifferHaveNoFeedInCommon(t *testing.T) {
	kept := map[string]bool{"CA": true, "TokenFile": true, "Refresh": true, "MaxAge": true} // say how it is fetched
	for name, s := range fieldtest.Each(typicalSource) {
		if s.Same(typicalSource()) {
			t.Errorf("a feed goes on with another %s", name)
		}
		if s.SameStore(typicalSource()) != kept[name] {
			t.Errorf("with another %s, shares is %t", name, !kept[name])
		}
	}
	if !typicalSource().Same(typicalSource()) {
		t.Error("a source is not the same as itself")
	}
}
