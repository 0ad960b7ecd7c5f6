// Package exchange is one request and its response, whatever version of HTTP they come in, in clear and in inspected tunnels:
// it has the gate decide the request, sends and answers it, and records the end ([Exchange.Do]). The package scans requests for
// canaries, and redacts credentials from responses. It opens no connection: it dials by a [egress.Flow] only.
package exchange

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Limits bound what a client can make the server hold. Zero fields have the
// stated defaults.
type Limits struct {
	Connections int // open at a time, over all sandboxes; 20,000. Nobody gets one more that has as many as are free
	HeadBytes   int // of a request's head; 64 KiB
	HeadFields  int // header fields in one; 100

	ResponseHeadBytes int // of a response's head; 256 KiB
	ResponseFields    int // header fields in one; 1000

	Head       time.Duration // for a head or a SOCKS handshake, and in clear from one request to the end of the next one's head; 10 s
	BodyBytes  int           // of a body that a rule reads before it is passed on; 32 MiB
	HelloBytes int           // of a tunnel's first bytes; 64 KiB
	Hello      time.Duration // for them, and for a handshake on a TLS listener; 10 s
	Idle       time.Duration // without a byte either way; 10 min
	Lifetime   time.Duration // of a tunnel, whatever moves in it; 24 h
}

func (l Limits) filled() Limits {
	fill(&l.Connections, 20_000)
	fill(&l.HeadBytes, 64<<10)
	fill(&l.HeadFields, 100)
	fill(&l.ResponseHeadBytes, 256<<10)
	fill(&l.ResponseFields, 1000)
	fill(&l.Head, 10*time.Second)
	fill(&l.BodyBytes, 32<<20)
	fill(&l.HelloBytes, 64<<10)
	fill(&l.Hello, 10*time.Second)
	fill(&l.Idle, 10*time.Minute)
	fill(&l.Lifetime, 24*time.Hour)
	return l
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// bodyMemoryOfSandbox is how many bytes of bodies may be held for one sandbox. A body beyond it is refused.
const bodyMemoryOfSandbox = 128 << 20

// A Forwarder holds what the connections of one server share: the gate, the limits, the buffers, and
// the quotas of memory and of scanning. It is safe for concurrent use.
type Forwarder struct {
	Gate      *egress.Gate
	Sandboxes *sandbox.Directory

	// LooksInside reports whether tunnels can be inspected now.
	LooksInside func() bool

	Secrets atomic.Pointer[Secrets] // that are added to requests which begin from now on; nil: none

	Limits       Limits
	Heads        http1.Limits // of requests
	Responses    http1.Limits
	readers      headReaders
	Buffers      sync.Pool // of *[BodyBuffer]byte
	nodes        knownNodes
	lfs          lfsActions
	BodyMemory   fair.MemoryQuota // of bodies that are held back until they are scanned or decided
	Scanning     *fair.Turns      // tests may set others
	ScanPatience time.Duration    // for one scan; 0: scanPatience
	cutting      chan struct{}    // closed by Cut
	cutOnce      sync.Once
}

// Prepare fills in what is not set yet.
func (s *Forwarder) Prepare(gate *egress.Gate, sandboxes *sandbox.Directory, limits Limits) {
	s.Gate, s.Sandboxes, s.Limits = gate, sandboxes, limits.filled()
	s.Heads = http1.Limits{Bytes: s.Limits.HeadBytes, Fields: s.Limits.HeadFields}
	s.Responses = http1.Limits{Bytes: s.Limits.ResponseHeadBytes, Fields: s.Limits.ResponseFields}
	s.Buffers.New = func() any { return new([BodyBuffer]byte) }
	s.cutting = make(chan struct{})
	s.BodyMemory.SetDefault(bodyMemoryOfSandbox)
	if s.Scanning == nil {
		s.Scanning = fair.NewTurns(max(1, runtime.GOMAXPROCS(0)-1))
	}
	fill(&s.ScanPatience, scanPatience)
	s.ScanPatience = min(s.ScanPatience, s.Limits.Idle/2) // a longer wait would count as an idle network
}

// Cut ends every pause.
func (s *Forwarder) Cut() { s.cutOnce.Do(func() { close(s.cutting) }) }

// Pause waits for d, or until Shutdown cuts what is left.
func (s *Forwarder) Pause(d time.Duration) {
	if d <= 0 {
		return
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-s.cutting:
	}
}

// Penalty returns how long a refusal has to wait: one for wrong credentials does.
func (s *Forwarder) Penalty(p sandbox.Peer, r *egress.Refusal) time.Duration {
	if r.Decision.Class != policy.UnknownSandbox || !p.HasCredentials {
		return 0
	}
	return s.Sandboxes.Failed(p, time.Now())
}
