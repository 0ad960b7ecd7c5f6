package proxy

import (
	"errors"
	"reflect"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/sniff"
	"github.com/egressd/egressd/policy"
)

// A retry is what is kept of a ClientHello while the client may send another one, because
// the server asks for it. That one has to claim the same, which not every server looks at:
// one with another server name would open what was never decided (decision 40).
type helloWatch struct {
	sniff.Retry
	claim *policy.ClientHello
}

// passWatched passes a hello and goes on looking for a second one. behind is what the client
// sent after the first.
func (c *conn) passWatchingHello(claim *policy.ClientHello, behind []byte) (relay.Judgement, []byte) {
	c.helloWatch = &helloWatch{claim: claim}
	j, farewell := c.Follow(true, behind)
	if j != relay.Follow && j != relay.Await {
		return j, farewell
	}
	c.connHolder = c.admission.holder
	c.tunnel.Limit(c.flow.Budget())
	return j, nil
}

// Follow implements [relay.Follower]: it judges a second ClientHello, and what follows a
// [word]. It runs on the loop.
func (c *conn) Follow(up bool, next []byte) (relay.Judgement, []byte) {
	if c.helloWatch == nil {
		return c.followPreamble(up, next), nil
	}
	if !up {
		if c.helloWatch.Server(next) {
			return c.pass()
		}
		return relay.Follow, nil
	}
	hello, err := c.helloWatch.Client(next)
	switch {
	case errors.Is(err, sniff.ErrShort) && c.helloWatch.Keeps():
		return relay.Await, nil
	case errors.Is(err, sniff.ErrShort):
		return relay.Follow, nil
	case errors.Is(err, sniff.ErrNoTLS):
		return c.pass()
	case err != nil:
		return c.narrow(accessDenied, tlsClaim(malformedClaim(err)))
	}
	claim := claimOf(&hello)
	if sameClaim(claim, c.helloWatch.claim) {
		return c.pass()
	}
	return c.narrow(accessDenied, tlsClaim(claim))
}

// sameClaim reports whether two hellos of one connection differ in their fingerprint alone:
// the second one may leave out extensions (RFC 8446 §4.1.2).
func sameClaim(a, b *policy.ClientHello) bool {
	x, y := *a, *b
	x.JA4, y.JA4 = "", ""
	return reflect.DeepEqual(x, y)
}
