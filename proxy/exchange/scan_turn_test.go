package exchange

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

// A contest is one body that is searched while others want the only turn.
type contest struct {
	turns *fair.Turns
	done  chan struct{} // is closed when the search is over
	got   string
	err   error
}

// newContest has another sandbox have the turn, and the body of a flow wait for it.
func newContest(ctx context.Context, flow *egress.Flow, body string) *contest {
	c := &contest{turns: fair.NewTurns(1), done: make(chan struct{})}
	c.turns.TakeNow()
	held := new(fair.MemoryQuota)
	held.SetMost(bodyMemoryOfSandbox)
	l := newBodyScanner(flow, []string{"gzip"}, held.Reserve("one", "one"), scanTurn{turns: c.turns, patience: time.Minute, flow: flow, ctx: ctx})
	go func() {
		defer close(c.done)
		part, err := l.scan([]byte(body))
		if err == nil {
			part, err = withRest(l, part)
		}
		c.got, c.err = string(part), err
	}()
	synctest.Wait()
	return c
}

func (c *contest) over() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// round has the body have the turn while another sandbox waits for it, which takes it next.
func (c *contest) round(ctx context.Context) {
	next := make(chan error)
	go func() { next <- c.turns.Take(ctx, "another", "another") }()
	synctest.Wait()
	c.turns.Give()
	<-next
}

// emptyBlocks are deflate blocks of so many bytes, each with tables and without a byte of
// text (RFC 1951 §3.2.7), in a gzip member that does not end.
func emptyBlocks(bytes int) string {
	const (
		head    = "0" + "01" + "00000" + "00000" + "0111"                                      // not the last; dynamic; 257 codes, 1 distance, 18 lengths of lengths
		lengths = "000000" + "100" + "010" + "000000000000000000000000000000000000000" + "010" // 18: 1 bit; 0 and 1: 2 bits
		tables  = "0" + "1111111" + "0" + "1101011" + "11" + "11"                              // 138 and 118 codes that are not there, the end of a block, a distance
		block   = head + lengths + tables + "0"                                                // and that end
	)
	b := []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
	for bit := 0; len(b) < bytes; bit++ {
		if bit%8 == 0 {
			b = append(b, 0)
		}
		b[len(b)-1] |= (block[bit%len(block)] & 1) << (bit % 8)
	}
	return string(b)
}

// TestALongSearchGivesItsTurn to whoever waits, by what is unpacked and by what that says, and
// refuses the body where it gets no other.
func TestALongSearchGivesItsTurn(t *testing.T) {
	canaries, err := secret.NewCanaries([]secret.Canary{{Name: "aws-key", Text: []byte("AKIAQ3EGCANARY77+x/Z9kLm")}})
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, compressedMost/2)
	for i, r := 0, rand.New(rand.NewPCG(1, 1)); i < len(noise); i++ {
		noise[i] = byte(r.Uint32())
	}
	const size = 256 << 10
	for _, row := range []struct {
		says, body string
		turns      int // at least
	}{
		{"what it says", zipped(strings.Repeat("words ", 1<<20)), 6 << 20 / scannedPerTurn},
		{"what it is", "\x1f\x8b" + string(noise), len(noise) / scannedPerTurn},
		{"members that say nothing", strings.Repeat(zipped(""), size/len(zipped(""))), size * unpackWork / scannedPerTurn},
		{"blocks that say nothing", emptyBlocks(size), size * unpackWork / scannedPerTurn},
		{"a field of the head", "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\xff\xff" + strings.Repeat("x", 1<<16), 1 << 16 * unpackWork / scannedPerTurn},
	} {
		t.Run(row.says, func(t *testing.T) {
			gate, flow, _ := egresstest.OpenFlow(t, "1")
			gate.SetCanaries(canaries)
			synctest.Test(t, func(t *testing.T) {
				c := newContest(t.Context(), flow, row.body)
				n := 0
				for ; !c.over(); n++ {
					c.round(t.Context())
				}
				if n < row.turns || n > 2*row.turns+20 {
					t.Errorf("another had %d turns, want about %d", n, row.turns)
				}
				if c.err != nil || c.got != row.body {
					t.Errorf("%d bytes of %d went on, and %v", len(c.got), len(row.body), c.err)
				}
				c.turns.Give()
				if !c.turns.TakeNow() {
					t.Error("the turn was not given back")
				}
			})
			synctest.Test(t, func(t *testing.T) {
				c := newContest(t.Context(), flow, row.body)
				for range row.turns / 2 {
					c.round(t.Context())
				}
				began := time.Now()
				<-c.done
				var over *egress.Refusal
				if !errors.As(c.err, &over) || over.Decision.Class != policy.TooManyFlows || c.got != "" || time.Since(began) != time.Minute {
					t.Errorf("after %v %d bytes went on, and %v", time.Since(began), len(c.got), c.err)
				}
			})
		})
	}
}
