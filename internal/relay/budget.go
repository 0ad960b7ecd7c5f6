package relay

// Limit changes how many bytes of payload may go to the upstream in all, from now
// on; 0 means any number. A tunnel that has sent more already ends.
func (t *Tunnel) Limit(up int64) {
	if t.over || up == t.limits.Up {
		return
	}
	own := *t.limits // which tunnels share
	own.Up = up
	t.limits = &own
	if t.judged && !t.fits(0) {
		t.exceed()
	}
}

// exceed ends a tunnel whose client has more to send than it may, with a reset to
// both sides: what has come must not pass for all.
func (t *Tunnel) exceed() {
	Reset(int(t.client.fd))
	Reset(int(t.upstream.fd))
	t.finish(OverBudget)
}

// taken counts what was read from the client for the upstream, sent or not.
func (t *Tunnel) taken() int64 {
	n := t.up.count + int64(t.up.piped())
	if t.up.rest != nil {
		n += int64(len(*t.up.rest))
	}
	return n
}

// fits reports whether n more bytes from the client are within the budget.
func (t *Tunnel) fits(n int) bool {
	return t.limits.Up == 0 || t.taken()+int64(n) <= t.limits.Up
}

// mayTake reports whether n more bytes of s may be read to be passed on.
func (t *Tunnel) mayTake(s *stream, n int) bool { return s != &t.up || t.fits(n) }

// room returns how many bytes of s may be read at once, at most most. It returns 1 instead of 0, so that a
// byte over the budget is noticed.
func (t *Tunnel) room(s *stream, most int) int {
	if s != &t.up || t.limits.Up == 0 {
		return most
	}
	return int(max(1, min(int64(most), t.limits.Up-t.taken())))
}

func (t *Tunnel) meter(s *stream, n int64) {
	switch m := t.limits.Meter; {
	case m == nil:
	case s == &t.up:
		m.Up.Add(n)
	default:
		m.Down.Add(n)
	}
}
