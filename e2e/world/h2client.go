package world

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An h2Client speaks HTTP/2 frame by frame, so that it can say what no library
// would.
type h2Client struct {
	framer *http2.Framer
	block  bytes.Buffer
	fields *hpack.Encoder
	stream uint32
}

// AskH2 begins HTTP/2 on a connection and sends one request, which is given as HTTP/1 writes it. It checks nothing of it. The
// stream stays open if only a part of the body is there, or Expect holds the body back.
func AskH2(rw io.ReadWriter, text string) (Answer, error) {
	c, err := newH2Client(rw)
	if err != nil {
		return Answer{}, err
	}
	return c.ask(text)
}

func newH2Client(rw io.ReadWriter) (*h2Client, error) {
	if _, err := io.WriteString(rw, http2.ClientPreface); err != nil {
		return nil, err
	}
	c := &h2Client{framer: http2.NewFramer(rw, rw), stream: 1}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.fields = hpack.NewEncoder(&c.block)
	return c, c.framer.WriteSettings()
}

// ask sends one request, which is given as HTTP/1 writes it, on a stream of
// its own, and reads the response.
func (c *h2Client) ask(text string) (Answer, error) {
	head, body, _ := strings.Cut(text, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	request := strings.Fields(lines[0])
	c.block.Reset()
	c.add(":method", request[0])
	c.add(":scheme", "https")
	c.add(":path", request[1])
	var rest [][2]string
	length, begun := 0, body != ""
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		switch name = strings.ToLower(name); name {
		case "host":
			c.add(":authority", value)
		case "connection": // has no place here
		case "content-length":
			length, _ = strconv.Atoi(value)
			rest = append(rest, [2]string{name, value})
		default:
			begun = begun || name == "expect"
			rest = append(rest, [2]string{name, value})
		}
	}
	for _, field := range rest {
		c.add(field[0], field[1])
	}
	if err := c.send(body, !begun || length <= len(body)); err != nil {
		return Answer{}, err
	}
	return c.read()
}

func (c *h2Client) add(name, value string) {
	c.fields.WriteField(hpack.HeaderField{Name: name, Value: value})
}

// send sends the fields that were added, and a body if there is one, and ends the stream or leaves it open.
func (c *h2Client) send(body string, ends bool) error {
	const most = 16 << 10
	block := c.block.Bytes()
	first := block[:min(len(block), most)]
	rest := block[len(first):]
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: c.stream, BlockFragment: first, EndHeaders: len(rest) == 0, EndStream: ends && body == "",
	})
	for len(rest) > 0 && err == nil {
		part := rest[:min(len(rest), most)]
		rest = rest[len(part):]
		err = c.framer.WriteContinuation(c.stream, len(rest) == 0, part)
	}
	for body != "" && err == nil {
		part := body[:min(len(body), most)]
		body = body[len(part):]
		err = c.framer.WriteData(c.stream, ends && body == "", []byte(part))
	}
	return err
}

// ErrReset says that the proxy has reset the stream of a request.
var ErrReset = errors.New("the stream was reset")

// read reads the response to the last request.
func (c *h2Client) read() (a Answer, err error) {
	a = Answer{Reply: -1, Header: http.Header{}}
	defer func() { c.stream += 2 }()
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return a, err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			a.take(f)
		case *http2.DataFrame:
			a.Body += string(f.Data())
			c.framer.WriteWindowUpdate(0, max(1, f.Length))
			c.framer.WriteWindowUpdate(f.StreamID, max(1, f.Length))
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			if f.LastStreamID < c.stream { // else the response still comes
				return a, fmt.Errorf("GOAWAY %s: %w", f.ErrCode, io.EOF)
			}
		case *http2.RSTStreamFrame:
			return a, fmt.Errorf("%w: %s", ErrReset, f.ErrCode)
		}
		if h := frame.Header(); h.StreamID == c.stream && h.Flags.Has(http2.FlagDataEndStream) &&
			(h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			return a, nil
		}
	}
}

func (a *Answer) take(f *http2.MetaHeadersFrame) {
	for _, field := range f.RegularFields() {
		a.Header.Add(field.Name, field.Value)
	}
	if status := f.PseudoValue("status"); status != "" {
		a.Status, _ = strconv.Atoi(status)
	}
}

// insideH2 puts a vector through a tunnel, as HTTP/2.
func (c *client) insideH2(t *testing.T, d *Daemon, v *Vector) error {
	inner, err := c.enter(t, d, v, "h2")
	if err != nil {
		return err
	}
	h2, err := newH2Client(inner)
	if err != nil {
		return err
	}
	for _, part := range v.parts(t) {
		c.Sent = append(c.Sent, part...)
		a, err := h2.ask(string(part))
		if err != nil {
			return err
		}
		c.Answers = append(c.Answers, a)
	}
	return nil
}
