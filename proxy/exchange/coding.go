package exchange

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// zstdWindow is the largest window that a decoder of the content coding has to support (RFC 9659 section 3).
const zstdWindow = 8 << 20

// codingOf returns what a request's values of Content-Encoding say: "", "gzip", "zstd", or ok as false.
func codingOf(values []string) (name string, ok bool) {
	if len(values) == 0 {
		return "", true
	}
	switch name = strings.ToLower(values[0]); {
	case len(values) > 1:
		return "", false
	case name == "identity":
		return "", true
	case name == "gzip", name == "x-gzip":
		return "gzip", true
	}
	return name, name == "zstd"
}

const (
	notAsSaid   = "it is not compressed as its Content-Encoding says"
	severalLots = "it is compressed in several parts"
)

// ungzip reads one member of gzip, which has to be all of a body.
func (b *heldBody) ungzip() (content []byte, problem string) {
	left := bytes.NewReader(b.bytes)
	in := bufio.NewReaderSize(left, undoneAhead)
	r, err := gzip.NewReader(in)
	if err != nil {
		return nil, notAsSaid
	}
	r.Multistream(false)
	content, problem = b.undo(r)
	if problem == "" && left.Len()+in.Buffered() > 0 {
		return nil, severalLots
	}
	return content, problem
}

// unzstd reads one frame of Zstandard (RFC 8878), which has to be all of a body.
func (b *heldBody) unzstd() (content []byte, problem string) {
	window, problem := oneFrame(b.bytes)
	if problem != "" {
		return nil, problem
	}
	room := b.memory.Beside()
	defer room.Release()
	if !room.Grow(int64(window)) {
		return nil, "it is too long once it is decompressed"
	}
	r, err := newZstd(bytes.NewReader(b.bytes))
	if err != nil {
		return nil, notAsSaid
	}
	defer r.Close()
	return b.undo(r)
}

// newZstd returns a decoder that starts no goroutine. The caller closes it.
func newZstd(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(zstdWindow))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// isZstd reports whether a body begins with a frame of Zstandard, or with one that holds no content.
func isZstd(body []byte) bool {
	return len(body) >= 4 && (bytes.HasPrefix(body, []byte{0x28, 0xb5, 0x2f, 0xfd}) || body[0]&0xf0 == 0x50 && bytes.HasPrefix(body[1:], []byte{0x2a, 0x4d, 0x18}))
}

// oneFrame returns the size of the window of a body that is one frame. A server may read only the first of several, and read
// over frames that hold no content. It looks at no content.
func oneFrame(body []byte) (window uint64, problem string) {
	var h zstd.Header
	if err := h.Decode(body); err != nil || h.DictionaryID != 0 {
		return 0, notAsSaid
	}
	window = h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	switch {
	case h.Skippable:
		return 0, severalLots
	case window > zstdWindow:
		return 0, "it needs more memory to be decompressed than its Content-Encoding allows"
	}
	rest := body[h.HeaderSize:]
	for last := false; !last; {
		if len(rest) < 3 {
			return 0, notAsSaid
		}
		header := uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16
		last = header&1 != 0
		size := int(header >> 3)
		switch header >> 1 & 3 {
		case 1: // one byte stands for all
			size = 1
		case 3:
			return 0, notAsSaid
		}
		if rest = rest[3:]; len(rest) < size {
			return 0, notAsSaid
		}
		rest = rest[size:]
	}
	switch checksum := 4; {
	case h.HasCheckSum && len(rest) < checksum:
		return 0, notAsSaid
	case h.HasCheckSum:
		rest = rest[checksum:]
	}
	if len(rest) > 0 {
		return 0, severalLots
	}
	return window, ""
}
