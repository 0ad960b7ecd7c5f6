package proxy

import (
	"errors"
	"net/http"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
)

// mayGoUp counts n more bytes of the request's body, or of the WebSocket that it
// became, before they are sent. Beyond the budget the error is a [*egress.Refusal],
// and none of them may go.
func (x *exchange) allowUp(n int) error {
	if most := x.flow.Budget(); most > 0 && x.payload+int64(n) > most {
		return x.flow.Exceeded()
	}
	x.payload += int64(n)
	x.meter.Up.Add(int64(n))
	return nil
}

func (x *exchange) countDown(n int) error {
	x.meter.Down.Add(int64(n))
	return nil
}

// wentDown counts what went to the client.
func (x *exchange) addDown(n int64) {
	x.end.Down += n
	x.meter.Down.Add(n)
}

// refusalIn returns the refusal that err is, or nil.
func refusalIn(err error) (r *egress.Refusal) {
	errors.As(err, &r)
	return r
}

// overBudget tells an exchange whose body was more than may go up from what its
// other half came to. One that has part of a response cannot be answered any more.
func overBudget(received, sent error) error {
	var late unanswerable
	switch {
	case refusalIn(sent) == nil:
		return received
	case received == nil, errors.As(received, &late):
		return unanswerable{sent}
	}
	return sent
}

// countHead counts the head of the request, which is no part of what its budget is
// for.
func (st *stream) countHead(r *http.Request, fields http1.Fields) {
	st.headBytes = int64(len(r.Method) + len(r.RequestURI) + len(r.Host))
	for _, f := range fields {
		st.headBytes += int64(len(f.Name) + len(": \r\n") + len(f.Value))
	}
	st.writer.meter.Up.Add(st.headBytes)
}

// mayGoUp is that of an exchange, for a stream of HTTP/2.
func (st *stream) allowUp(n int) error {
	if most := st.flow.Budget(); most > 0 && st.bodyBytes.Load()+int64(n) > most {
		st.exceeded.Store(true)
		return st.flow.Exceeded()
	}
	st.bodyBytes.Add(int64(n))
	st.writer.meter.Up.Add(int64(n))
	return nil
}
