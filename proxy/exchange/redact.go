package exchange

import (
	"context"
	"runtime"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
)

// Passing returns the fields of a response, or of its trailer, that pass: without those by which egressd speaks for itself
// and without the credentials of the host. A field whose name holds a
// credential does not pass. Passing reuses f.
func (x *Exchange) Passing(f http1.Fields) http1.Fields {
	if x.redaction != nil {
		size := 0
		for _, field := range f {
			size += len(field.Name) + len(field.Value)
		}
		defer redactTurn(x.Flow, size)()
	}
	f = slices.DeleteFunc(f, func(field http1.Field) bool {
		return reserved(field.Name) || x.redaction != nil && x.noted(x.redaction.InName(field.Name))
	})
	for i := range f {
		if x.redaction != nil {
			var hit bool
			f[i].Value, hit = x.redaction.RedactString(f[i].Value)
			x.noted(hit)
		}
	}
	return f
}

// noted notes that the response held a credential, if it did.
func (x *Exchange) noted(hit bool) bool {
	if hit {
		x.end.Note = "the response held a credential of this host; it was struck out"
	}
	return hit
}

// A bodyRedactor takes the credentials of a host out of the body of a response.
type bodyRedactor struct {
	exchange *Exchange
	redactor *secret.Redactor
}

// filters reports whether responseFilter is not nil.
func (x *Exchange) filters() bool { return x.redaction != nil || x.lfs != nil }

// responseFilter returns what takes the host's credentials out of the response, and reads the answer to a batch of Git LFS. It is
// nil where there is neither.
func (x *Exchange) responseFilter() bodyFilter {
	var redactor bodyFilter
	if x.redaction != nil {
		redactor = &bodyRedactor{x, x.redaction.NewRedactor()}
	}
	if x.lfs != nil {
		x.lfs.then = redactor
		return x.lfs
	}
	return redactor
}

func (r *bodyRedactor) scan(b []byte) ([]byte, error) {
	defer redactTurn(r.exchange.Flow, len(b))()
	out := r.redactor.Redact(b)
	r.exchange.noted(r.redactor.Hits() > 0)
	return out, nil
}

func (r *bodyRedactor) flush() ([]byte, error) { return r.redactor.Flush(), nil }

// sent implements [bodyFilter]. Few bytes are held, so they do not count.
func (r *bodyRedactor) sent() {}

// reserved names the response fields that only egressd sends, and Alt-Svc,
// which names another way out.
func reserved(name string) bool {
	for _, own := range [...]string{"X-Egressd-Id", "X-Proxy-Error", "Proxy-Status", "Alt-Svc"} {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// redacting limits how many responses are redacted at once, 35 to 600 MB a second. It leaves one processor free on a
// machine with several. Sandboxes take turns, part by part.
var redacting = fair.NewTurns(max(1, runtime.GOMAXPROCS(0)-1))

// A shorter part of a response is redacted at once.
const longPart = 4 << 10

// redactTurn waits for the turn of the sandbox of a flow in which so many bytes are redacted. The caller calls end afterwards. A turn
// only computes, and so no wait needs a limit.
func redactTurn(flow *egress.Flow, size int) (end func()) {
	if size < longPart || redacting.Take(context.Background(), flow.Holder(), flow.Sandbox()) != nil {
		return func() {}
	}
	return redacting.Give
}
