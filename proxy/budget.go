package proxy

import (
	"errors"

	"github.com/egressd/egressd/egress"
)

// mayGoUp counts n more bytes of the request's body, or of the WebSocket that it
// became, before they are sent. Beyond the budget the error is a [*egress.Refusal],
// and none of them may go.
func (x *exchange) mayGoUp(n int) error {
	if most := x.flow.Budget(); most > 0 && x.payload+int64(n) > most {
		return x.flow.Exceeded()
	}
	x.payload += int64(n)
	x.meter.Up.Add(int64(n))
	return nil
}

func (x *exchange) goesDown(n int) error {
	x.meter.Down.Add(int64(n))
	return nil
}

// wentDown counts what went to the client.
func (x *exchange) wentDown(n int64) {
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
	var late spoilt
	switch {
	case refusalIn(sent) == nil:
		return received
	case received == nil, errors.As(received, &late):
		return spoilt{sent}
	}
	return sent
}

// mayGoUp is that of an exchange, for a stream of HTTP/2.
func (st *stream) mayGoUp(n int) error {
	if most := st.flow.Budget(); most > 0 && st.up.Load()+int64(n) > most {
		st.exceeded.Store(true)
		return st.flow.Exceeded()
	}
	st.up.Add(int64(n))
	st.answer.meter.Up.Add(int64(n))
	return nil
}
