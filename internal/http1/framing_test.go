package http1

import (
	"slices"
	"testing"
)

func TestRequestFraming(t *testing.T) {
	for _, row := range []struct {
		name   string
		method string
		minor  int
		fields Fields
		want   Framing
	}{
		{"no body", "GET", 1, nil, Framing{}},
		{"a POST without a length", "POST", 1, nil, Framing{}},
		{"a GET with a body", "GET", 1, Fields{{"Content-Length", "37"}}, Framing{Kind: BodyLength, Length: 37}},
		{"a body of no bytes", "POST", 1, Fields{{"content-length", "0"}}, Framing{Kind: BodyLength, Length: 0}},
		{"the longest body", "POST", 0, Fields{{"Content-Length", "9223372036854775807"}}, Framing{Kind: BodyLength, Length: 1<<63 - 1}},
		{"chunked", "POST", 1, Fields{{"transfer-encoding", "Chunked"}}, Framing{Kind: BodyChunked, Length: -1}},
		{"CONNECT that says it has no body", "CONNECT", 1, Fields{{"Content-Length", "0"}}, Framing{}},
	} {
		got, err := (&Request{Method: row.method, Minor: row.minor, Fields: row.fields}).Body()
		if err != nil || got != row.want {
			t.Errorf("%s: %+v, %v", row.name, got, err)
		}
	}
}

func TestResponseFraming(t *testing.T) {
	length := Fields{{"Content-Length", "5"}}
	chunked := Fields{{"Transfer-Encoding", "chunked"}}
	for _, row := range []struct {
		name   string
		method string
		status int
		fields Fields
		want   Framing
	}{
		{"a length", "GET", 200, length, Framing{Kind: BodyLength, Length: 5}},
		{"chunked", "GET", 200, chunked, Framing{Kind: BodyChunked, Length: -1}},
		{"neither", "GET", 200, nil, Framing{Kind: BodyUntilClose, Length: -1}},
		{"HEAD with a length", "HEAD", 200, length, Framing{}},
		{"HEAD with chunked", "HEAD", 200, chunked, Framing{}},
		{"304 with a length", "GET", 304, length, Framing{}},
		{"204", "GET", 204, nil, Framing{}},
		{"204 with chunked", "GET", 204, chunked, Framing{Faulty: true}},
		{"204 with a length", "GET", 204, length, Framing{Faulty: true}},
		{"100 with a length", "POST", 100, length, Framing{Faulty: true}},
		{"304 with chunked", "GET", 304, chunked, Framing{Faulty: true}},
		{"304 with lengths that differ", "GET", 304, Fields{{"Content-Length", "5, 6"}}, Framing{Faulty: true}},
		{"the same length twice", "GET", 200, append(length, length...), Framing{Kind: BodyLength, Length: 5}},
		{"the same length in a list", "GET", 200, Fields{{"Content-Length", "5, 5"}}, Framing{Kind: BodyLength, Length: 5}},
		{"a length with zeros in front", "GET", 200, Fields{{"Content-Length", "005"}}, Framing{Kind: BodyLength, Length: 5}},
		{"a length beside chunked", "GET", 200, append(chunked, length...), Framing{Kind: BodyChunked, Length: -1, Faulty: true}},
		{"identity", "GET", 200, Fields{{"Transfer-Encoding", "identity"}, {"Content-Length", "5"}}, Framing{Kind: BodyLength, Length: 5}},
		{"204 with a length of 0", "GET", 204, Fields{{"Content-Length", "0"}}, Framing{}},
		{"100", "POST", 100, nil, Framing{}},
		{"101", "GET", 101, nil, Framing{}},
		{"CONNECT that worked", "CONNECT", 200, nil, Framing{}},
		{"CONNECT that worked, with a length", "CONNECT", 200, length, Framing{}},
		{"CONNECT that did not", "CONNECT", 403, length, Framing{Kind: BodyLength, Length: 5}},
	} {
		got, err := (&Response{Status: row.status, Minor: 1, Fields: row.fields}).Body(row.method)
		row.want.Lax = true
		if err != nil || got != row.want {
			t.Errorf("%s: %+v, %v", row.name, got, err)
		}
	}
}

func TestMalformedResponseFraming(t *testing.T) {
	for _, fields := range []Fields{
		{{"Content-Length", "5"}, {"Content-Length", "6"}}, {{"Content-Length", "5, 6"}}, {{"Content-Length", "+5"}}, {{"Content-Length", ""}},
		{{"Content-Length", "99999999999999999999"}}, {{"Transfer-Encoding", "gzip, chunked"}}, {{"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}},
	} {
		resp := Response{Status: 200, Minor: 1, Fields: fields}
		if got, err := resp.Body("GET"); !isMalformed(err, 400) {
			t.Errorf("%+v: %+v, %v", resp, got, err)
		}
	}
}

func TestResponsesAreFramedCanonically(t *testing.T) {
	x, five := Field{"X", "y"}, Field{"Content-Length", "5"}
	for _, row := range []struct {
		method string
		status int
		fields Fields
		want   Fields
	}{
		{"GET", 200, Fields{five, x, five}, Fields{x, five}},
		{"GET", 200, Fields{{"Content-Length", "005"}, x}, Fields{x, five}},
		{"GET", 200, Fields{five, x}, Fields{five, x}},
		{"GET", 200, Fields{five, {"Transfer-Encoding", "chunked"}, x}, Fields{x}},
		{"GET", 204, Fields{five, x}, Fields{x}},
		{"GET", 204, Fields{{"Transfer-Encoding", "chunked"}, x}, Fields{x}},
		{"GET", 304, Fields{five, x}, Fields{five, x}},
		{"GET", 304, Fields{five, x, {"Content-Length", "6"}}, Fields{x}},
		{"HEAD", 200, Fields{five, x}, Fields{five, x}},
		{"HEAD", 200, Fields{five, {"Transfer-Encoding", "chunked"}, x}, Fields{x}},
	} {
		resp := Response{Status: row.status, Minor: 1, Fields: slices.Clone(row.fields)}
		framing, err := resp.Body(row.method)
		if got := resp.Framed(row.method, framing); err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s %d %v: %v, %v", row.method, row.status, row.fields, got, err)
		}
	}
}
