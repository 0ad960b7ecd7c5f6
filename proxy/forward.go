package proxy

import (
	"runtime"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/internal/turns"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Limits bound what a client can make the server hold. Zero fields have the
// stated defaults.
type forwardLimits struct {
	Connections int           // open at a time, over all sandboxes; 20,000. Nobody gets one more that has as many as are free
	HeadBytes   int           // of a request or response head; 64 KiB
	HeadFields  int           // header fields in one; 100
	Head        time.Duration // for a head or a SOCKS handshake, and in clear from one request to the end of the next one's head; 10 s
	HelloBytes  int           // of a tunnel's first bytes; 64 KiB
	Hello       time.Duration // for them, and for a handshake on a TLS listener; 10 s
	Idle        time.Duration // without a byte either way; 10 min
	Lifetime    time.Duration // of a tunnel, whatever moves in it; 24 h
}

func (l forwardLimits) filled() forwardLimits {
	fill(&l.Connections, 20_000)
	fill(&l.HeadBytes, 64<<10)
	fill(&l.HeadFields, 100)
	fill(&l.Head, 10*time.Second)
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

// A forwarder holds what the connections of one server share: the gate, the limits, the buffers, and
// the quotas of memory and of scanning. It is safe for concurrent use.
type forwarder struct {
	Gate      *egress.Gate
	Sandboxes *sandbox.Directory
	Redaction func(policy.Destination) *secret.Redaction // of responses in clear; nil results redact nothing

	limits       forwardLimits
	heads        http1.Limits
	readers      headReaders
	buffers      sync.Pool     // of *[bodyBuffer]byte
	bodyMemory   memoryQuota   // of bodies that are held back until they are scanned
	scanning     *turns.Turns  // tests may set others
	scanPatience time.Duration // for one scan; 0: scanPatience
	cutting      chan struct{} // closed by cut
	cutOnce      sync.Once
}

// prepare fills in what is not set yet.
func (s *forwarder) prepare(gate *egress.Gate, sandboxes *sandbox.Directory, limits forwardLimits) {
	s.Gate, s.Sandboxes, s.limits = gate, sandboxes, limits.filled()
	s.heads = http1.Limits{Bytes: s.limits.HeadBytes, Fields: s.limits.HeadFields}
	s.buffers.New = func() any { return new([bodyBuffer]byte) }
	s.cutting = make(chan struct{})
	s.bodyMemory.setDefault(bodyMemoryOfSandbox)
	if s.scanning == nil {
		s.scanning = turns.New(max(1, runtime.GOMAXPROCS(0)-1))
	}
	fill(&s.scanPatience, scanPatience)
	s.scanPatience = min(s.scanPatience, s.limits.Idle/2) // a longer wait would count as an idle network
}

// cut ends every pause.
func (s *forwarder) cut() { s.cutOnce.Do(func() { close(s.cutting) }) }

// pause waits for d, or until Shutdown cuts what is left.
func (s *forwarder) pause(d time.Duration) {
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

// penalty returns how long a refusal has to wait: one for wrong credentials does.
func (s *forwarder) penalty(p sandbox.Peer, r *egress.Refusal) time.Duration {
	if r.Decision.Class != policy.UnknownSandbox || !p.HasCredentials {
		return 0
	}
	return s.Sandboxes.Failed(p, time.Now())
}
