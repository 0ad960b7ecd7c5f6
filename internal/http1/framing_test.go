package http1

import "testing"

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
		{"a GET with a body", "GET", 1, Fields{{"Content-Length", "37"}}, Framing{BodyLength, 37}},
		{"a body of no bytes", "POST", 1, Fields{{"content-length", "0"}}, Framing{BodyLength, 0}},
		{"the longest body", "POST", 0, Fields{{"Content-Length", "9223372036854775807"}}, Framing{BodyLength, 1<<63 - 1}},
		{"chunked", "POST", 1, Fields{{"transfer-encoding", "Chunked"}}, Framing{BodyChunked, -1}},
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
		{"a length", "GET", 200, length, Framing{BodyLength, 5}},
		{"chunked", "GET", 200, chunked, Framing{BodyChunked, -1}},
		{"neither", "GET", 200, nil, Framing{BodyUntilClose, -1}},
		{"HEAD with a length", "HEAD", 200, length, Framing{}},
		{"HEAD with chunked", "HEAD", 200, chunked, Framing{}},
		{"304 with a length", "GET", 304, length, Framing{}},
		{"204", "GET", 204, nil, Framing{}},
		{"204 with a length of 0", "GET", 204, Fields{{"Content-Length", "0"}}, Framing{}},
		{"100", "POST", 100, nil, Framing{}},
		{"101", "GET", 101, nil, Framing{}},
		{"CONNECT that worked", "CONNECT", 200, nil, Framing{}},
		{"CONNECT that worked, with a length", "CONNECT", 200, length, Framing{}},
		{"CONNECT that did not", "CONNECT", 403, length, Framing{BodyLength, 5}},
	} {
		got, err := (&Response{Status: row.status, Minor: 1, Fields: row.fields}).Body(row.method)
		if err != nil || got != row.want {
			t.Errorf("%s: %+v, %v", row.name, got, err)
		}
	}
}

func TestMalformedResponseFraming(t *testing.T) {
	for _, resp := range []Response{
		{Status: 204, Minor: 1, Fields: Fields{{"Content-Length", "5"}}},
		{Status: 204, Minor: 1, Fields: Fields{{"Transfer-Encoding", "chunked"}}},
		{Status: 100, Minor: 1, Fields: Fields{{"Content-Length", "5"}}},
		{Status: 304, Minor: 1, Fields: Fields{{"Content-Length", "5, 5"}}},
		{Status: 200, Minor: 1, Fields: Fields{{"Content-Length", "5"}, {"Transfer-Encoding", "chunked"}}},
	} {
		for _, method := range []string{"GET", "HEAD", "CONNECT"} {
			if got, err := resp.Body(method); !isMalformed(err, 400) {
				t.Errorf("%s %+v: %+v, %v", method, resp, got, err)
			}
		}
	}
}
