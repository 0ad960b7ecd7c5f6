package inspect

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/internal/http1"
)

// headWatch: the library resets streams for fields that RFC 9113 §8.2 forbids,
// answers 400 for those that concern a connection and 431 for too many, and
// tells nobody. A headWatch reads along what the client sends, changes nothing
// of it, and reports those heads, one problem for each.
type headWatch struct {
	*tls.Conn
	report  func(problem string)
	empty   *emptyFrameLimit
	greeted atomic.Bool // the client has sent as much as a preface (RFC 9113 §3.4)
	listed  uint32      // bytes of a header list that the library takes, as RFC 9113 §6.5.2 counts them

	skip   int    // bytes to come that are no part of a head
	frame  []byte // what there is of the frame that comes
	blind  bool   // what comes can no longer be read; the library ends the connection
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
	frameHeadSize = 9       // RFC 9113 §4.1
	headParts     = 64      // frames that one head may come in: the library counts their bytes, and some have none
	fieldOverhead = 32      // RFC 9113 §6.5.2
	listOverhead  = 10 * 32 // what the library adds to the bytes of an HTTP/1 head
)

// watchHeads returns client as the library is to read it. report is called
// while it reads.
func watchHeads(client *tls.Conn, headBytes int, report func(problem string)) *headWatch {
	w := &headWatch{Conn: client, report: report, empty: newEmptyFrameLimit(false), skip: len(http2.ClientPreface), listed: uint32(headBytes) + listOverhead}
	w.frames = http2.NewFramer(nil, &w.blocks)
	w.frames.SetMaxReadFrameSize(frameMost)
	w.fields = hpack.NewDecoder(dynamicTable, func(f hpack.HeaderField) {
		more := w.head.add(f, w.listed)
		w.fields.SetEmitEnabled(more) // the library passes over the rest, and over what cannot be decoded in it
	})
	w.fields.SetMaxStringLength(int(w.listed))
	w.empty.from = preface
	return w
}

// errHeadParts ends a connection: the library itself would read on for ever.
var errHeadParts = errors.New("a head in too many frames")

func (w *headWatch) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.see(b[:n])
	w.hurry()
	if w.parts > headParts {
		return 0, errHeadParts
	}
	if !w.empty.spent && w.empty.received(b[:n]) != nil {
		w.report(errEmptyFrames.Error())
	}
	if w.empty.spent {
		return 0, errEmptyFrames
	}
	return n, err
}

// Write implements [net.Conn].
func (w *headWatch) Write(b []byte) (int, error) {
	w.empty.sent(b)
	return w.Conn.Write(b)
}

// hurry starts the countdown when a head, or that of any frame, begins, and stops it when the
// head is complete.
func (w *headWatch) hurry() {
	began := len(w.frame) > 0 || w.parts > 0 || w.void
	switch {
	case w.patience == nil || w.began == began:
	case began:
		w.patience.begin()
	default:
		w.patience.stop()
	}
	w.began = began
}

// see is given everything that the client sends, in pieces of any size.
func (w *headWatch) see(b []byte) {
	for len(b) > 0 && !w.blind {
		if w.skip > 0 {
			n := min(w.skip, len(b))
			w.skip, b = w.skip-n, b[n:]
			w.greeted.Store(w.greeted.Load() || w.skip == 0)
			continue
		}
		n := min(w.wanted()-len(w.frame), len(b))
		w.frame, b = append(w.frame, b[:n]...), b[n:]
		if len(w.frame) == frameHeadSize {
			w.begin()
		}
		if len(w.frame) == w.wanted() && len(w.frame) >= frameHeadSize {
			w.blind = !w.part()
		}
	}
}

// wanted is how long the frame has to become to be of use.
func (w *headWatch) wanted() int {
	if len(w.frame) < frameHeadSize {
		return frameHeadSize
	}
	return frameHeadSize + payloadLength(w.frame)
}

func payloadLength(frame []byte) int {
	return int(frame[0])<<16 | int(binary.BigEndian.Uint16(frame[1:]))
}

// begin looks at the first bytes of a frame, and passes over one that is no
// part of a head.
func (w *headWatch) begin() {
	kind := http2.FrameType(w.frame[3])
	switch {
	case payloadLength(w.frame) > frameMost:
		w.blind = true
		w.report("a frame of more than the advertised size")
	case kind != http2.FrameHeaders && kind != http2.FrameContinuation:
		w.skip, w.frame = payloadLength(w.frame), w.frame[:0]
		w.blind = w.parts > 0 // RFC 9113 §6.10
	}
}

// part reads a frame that is part of a head.
func (w *headWatch) part() (ok bool) {
	w.blocks.Write(w.frame)
	last := http2.Flags(w.frame[4]).Has(http2.FlagHeadersEndHeaders)
	w.frame = w.frame[:0]
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
		return w.block(frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.ContinuationFrame:
		return w.block(frame.HeaderBlockFragment(), frame.HeadersEnded())
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

// validField is as strict as the library. Whitespace at the ends of a value passes here; the stream's open
// refuses it.
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
