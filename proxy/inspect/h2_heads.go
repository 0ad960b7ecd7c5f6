package inspect

import (
	"bytes"
	"errors"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/internal/http1"
)

// A headWatch reports the heads of requests that the library refuses in silence, one problem for each. The library
// resets streams for fields that RFC 9113 §8.2 forbids, and answers 400 for those that concern a connection and 431
// for too many.
type headWatch struct {
	report func(problem string)
	listed uint32 // bytes of a header list that the library takes, as RFC 9113 §6.5.2 counts them

	blind  bool // the rest cannot be read; the library ends the connection
	blocks bytes.Buffer
	frames *http2.Framer // of blocks
	fields *hpack.Decoder
	last   uint32 // the newest stream
	parts  int    // of the head that comes; 0 between heads
	void   bool   // of the head that comes the library has refused the first frame, and ignores the others
	head   h2Head

	patience *countdown // runs while a head is not complete; nil: there is time without end
	began    bool       // patience runs
}

const (
	headParts     = 64      // frames that one head may come in: the library counts their bytes, and some have none
	fieldOverhead = 32      // RFC 9113 §6.5.2
	listOverhead  = 10 * 32 // what the library adds to the bytes of an HTTP/1 head
)

func newHeadWatch(headBytes int, patience *countdown, report func(problem string)) *headWatch {
	w := &headWatch{report: report, patience: patience, listed: uint32(headBytes) + listOverhead}
	w.frames = http2.NewFramer(nil, &w.blocks)
	w.frames.SetMaxReadFrameSize(frameMost)
	w.fields = hpack.NewDecoder(dynamicTable, func(f hpack.HeaderField) {
		more := w.head.add(f, w.listed)
		w.fields.SetEmitEnabled(more) // the library passes over the rest, and over what cannot be decoded in it
	})
	w.fields.SetMaxStringLength(int(w.listed))
	return w
}

// errHeadParts ends a connection: the library itself would read on for ever.
var errHeadParts = errors.New("a head in too many frames")

// hurry starts the countdown when a head, or that of any frame, begins, and stops it when the
// head is complete.
func (w *headWatch) hurry(inFrameHead bool) {
	began := inFrameHead || w.blocks.Len() > 0 || w.parts > 0 || w.void
	switch {
	case w.patience == nil || w.began == began:
	case began:
		w.patience.begin()
	default:
		w.patience.stop()
	}
	w.began = began
}

// begin is called for each frame that the client sends.
func (w *headWatch) begin(f frame) {
	switch {
	case w.blind:
	case f.length > frameMost:
		w.blind = true
		w.report("a frame of more than the advertised size")
	case f.kind != http2.FrameHeaders && f.kind != http2.FrameContinuation:
		w.blind = w.parts > 0 // RFC 9113 §6.10
	default:
		w.blocks.Write(f.head[:])
		w.payload(f, 0, nil)
	}
}

// payload is called for each piece of a payload.
func (w *headWatch) payload(f frame, at int, piece []byte) {
	if w.blocks.Len() == 0 { // of a frame that is no part of a head
		return
	}
	w.blocks.Write(piece)
	if at+len(piece) == f.length {
		w.blind = !w.part(f.flags.Has(http2.FlagHeadersEndHeaders))
		w.blocks.Reset() // of what the framer has not read because it gave up
	}
}

// part reads a frame that is part of a head, the last one or not.
func (w *headWatch) part(last bool) (ok bool) {
	frame, err := w.frames.ReadFrame()
	var reset http2.StreamError
	switch {
	case errors.As(err, &reset), err == nil && w.void: // the library counts the first frame, and goes on
		w.void = !last
		return true
	case err != nil:
		return false
	}
	if w.parts++; w.parts > headParts {
		w.report(errHeadParts.Error())
		return false
	}
	switch frame := frame.(type) {
	case *http2.HeadersFrame:
		w.head = h2Head{trailer: frame.StreamID <= w.last}
		w.last = max(w.last, frame.StreamID)
		w.fields.SetEmitEnabled(true)
		return w.block(frame.HeaderBlockFragment(), last)
	case *http2.ContinuationFrame:
		return w.block(frame.HeaderBlockFragment(), last)
	}
	return false
}

// block reads a piece of a head.
func (w *headWatch) block(piece []byte, last bool) (ok bool) {
	if _, err := w.fields.Write(piece); err != nil {
		return false
	}
	if !last {
		return true
	}
	w.parts = 0
	if problem := w.head.silent(); problem != "" {
		w.report(problem)
	}
	return w.fields.Close() == nil
}

// An h2Head is what is known of the fields of one head.
type h2Head struct {
	trailer  bool
	regular  bool   // a field came that is no pseudo-header field
	named    uint8  // pseudo-header fields, as bits
	scheme   bool   // it is one of HTTP's
	path     bool   // it is not empty
	size     uint32 // as the library counts it
	trailers uint32 // the same, of the fields that announce trailers
	te       int    // fields of that name
	large    bool
	invalid  string // why the library reads no further in it, and resets the stream
	pseudos  string // why it resets the stream when it has read all
	concerns string // why it answers 400
}

var pseudoFields = map[string]uint8{":method": 1, ":scheme": 2, ":path": 4, ":authority": 8, ":protocol": 16, ":status": 32}

const (
	pseudoNeeded   = 1 | 2 | 4
	pseudoResponse = 32
)

// add notes the next field, and reports whether those behind it matter.
func (h *h2Head) add(f hpack.HeaderField, most uint32) (more bool) {
	if f.IsPseudo() {
		h.invalid = h.pseudo(f)
	} else {
		h.invalid = h.field(f)
	}
	h.count(f)
	h.large = max(h.size, h.trailers) > most
	return h.invalid == "" && !h.large
}

func (h *h2Head) count(f hpack.HeaderField) {
	if f.Name == "trailer" {
		names := strings.Count(f.Value, ",") + 1
		h.trailers += uint32(len(f.Value) + names*fieldOverhead)
		return
	}
	h.size += f.Size()
}

// field notes a field and says what is wrong with it.
func (h *h2Head) field(f hpack.HeaderField) (problem string) {
	h.regular = true
	switch {
	case f.Name != strings.ToLower(f.Name):
		return "a field name that is not in lower case"
	case !validField(f.Name, f.Value):
		return "a field with characters that it may not have"
	case h.concerns == "":
		h.concerns = h.ofConnection(f)
	}
	return ""
}

// validField is as strict as the library. Whitespace at the ends of a value passes here; stream.understand refuses it.
func validField(name, value string) bool {
	return http1.Field{Name: name, Value: strings.Trim(value, " \t")}.Valid()
}

// pseudo notes a pseudo-header field (RFC 9113 §8.3) and says what is wrong
// with it.
func (h *h2Head) pseudo(f hpack.HeaderField) (problem string) {
	bit := pseudoFields[f.Name]
	twice := h.named&bit != 0
	h.named |= bit
	switch f.Name {
	case ":scheme":
		h.scheme = f.Value == "https" || f.Value == "http"
	case ":path":
		h.path = f.Value != ""
	}
	switch {
	case h.regular:
		return "a pseudo-header field after others"
	case !validField("x", f.Value):
		return "a pseudo-header field with characters that it may not have"
	case bit == 0:
		h.pseudos = "a pseudo-header field that does not exist"
	case twice:
		h.pseudos = "a pseudo-header field twice"
	case h.named&pseudoResponse != 0 && h.named != pseudoResponse:
		h.pseudos = "a pseudo-header field of responses"
	}
	return ""
}

// ofConnection says whether a field concerns one connection only (RFC 9113
// §8.2.2).
func (h *h2Head) ofConnection(f hpack.HeaderField) (problem string) {
	switch f.Name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return "a field that concerns a connection: " + f.Name
	case "te":
		if h.te++; h.te > 1 || f.Value != "trailers" && f.Value != "" {
			return "a TE field of something else than trailers"
		}
	}
	return ""
}

// silent returns why the library refuses the head without counting an error. The library counts the other
// problems.
func (h *h2Head) silent() (problem string) {
	switch {
	case h.invalid != "":
		return h.invalid
	case h.pseudos != "":
		return h.pseudos
	case h.trailer || h.named&pseudoNeeded != pseudoNeeded || !h.scheme || !h.path:
		return ""
	case h.large:
		return "more header fields than fit"
	}
	return h.concerns
}
