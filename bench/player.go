//go:build linux

package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// A player plays one script on many connections concurrently, in one goroutine with epoll. Blocking
// threads would cost a context switch for each answer. That would hide the cost of the proxies.
type player struct {
	script *script
	epoll  int
	roles  []playing
	byFD   map[int]*playing
	tally  tally
	end    time.Time // no operation begins later
}

// A playing is one connection of a player.
type playing struct {
	conn  client
	open  bool
	used  bool // an operation was done on conn
	step  int
	buf   []byte
	heard int
	began time.Time // the operation under way
	waits bool      // an operation is under way
}

var errNoAnswer = errors.New("no answer")

// play goes through s on the given number of connections for a time, and
// returns when the last answer is in.
func play(s *script, connections int, length time.Duration) (tally, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return tally{}, fmt.Errorf("epoll_create1: %w", err)
	}
	defer syscall.Close(epoll)
	p := &player{
		script: s,
		epoll:  epoll,
		roles:  make([]playing, connections),
		byFD:   make(map[int]*playing),
		tally:  tally{times: make([]uint32, 0, 1<<20)},
		end:    time.Now().Add(length),
	}
	for i := range p.roles {
		p.roles[i].buf = make([]byte, 1<<14)
		p.begin(&p.roles[i])
	}
	err = p.run()
	for i := range p.roles {
		p.drop(&p.roles[i])
	}
	return p.tally, err
}

// run serves events until nobody waits for an answer any more.
func (p *player) run() error {
	events := make([]syscall.EpollEvent, 64)
	for p.waiting() {
		n, err := syscall.EpollWait(p.epoll, events, patienceSeconds*1000)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("epoll_wait: %w", err)
		case n == 0:
			p.giveUp()
		}
		for _, event := range events[:n] {
			if r := p.byFD[int(event.Fd)]; r != nil {
				p.hear(r)
			}
		}
	}
	return nil
}

func (p *player) waiting() bool {
	for i := range p.roles {
		if p.roles[i].waits {
			return true
		}
	}
	return false
}

// giveUp counts every operation that is under way as failed.
func (p *player) giveUp() {
	for i := range p.roles {
		if r := &p.roles[i]; r.waits {
			p.tally.note(0, errNoAnswer)
			r.waits = false
			p.drop(r)
		}
	}
}

// begin starts operations on r until one waits for its answer, or time is up.
func (p *player) begin(r *playing) {
	for r.began = time.Now(); r.began.Before(p.end) && p.tally.errors < maxErrors; r.began = time.Now() {
		err := p.say(r)
		if err == nil {
			r.waits = true
			return
		}
		p.fail(r, err)
	}
	r.waits = false
}

// fail closes r's connection and counts the cause. A server may close a connection between two answers.
func (p *player) fail(r *playing, err error) {
	if r.used && r.heard == 0 {
		p.tally.reopened++
	} else {
		p.tally.note(0, err)
	}
	p.drop(r)
}

// say opens the connection where it is not open, and sends the current step.
func (p *player) say(r *playing) error {
	if !r.open {
		if err := p.dial(r); err != nil {
			return err
		}
	}
	r.heard = 0
	return r.conn.write(p.script.steps[r.step].send)
}

func (p *player) dial(r *playing) error {
	c, err := dial(p.script.port)
	if err != nil {
		return err
	}
	r.conn, r.open, r.step = c, true, 0
	p.byFD[c.fd] = r
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(c.fd)}
	if err := syscall.EpollCtl(p.epoll, syscall.EPOLL_CTL_ADD, c.fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (p *player) drop(r *playing) {
	if r.open {
		delete(p.byFD, r.conn.fd)
		r.conn.close()
		r.open, r.used = false, false
	}
}

// hear reads once and goes on where the answer is complete.
func (p *player) hear(r *playing) {
	if !r.waits {
		p.drop(r) // time is up, and nothing was asked
		return
	}
	if err := p.advance(r); err != nil {
		p.fail(r, err)
		p.begin(r)
	}
}

func (p *player) advance(r *playing) error {
	if r.heard == len(r.buf) {
		return errTooLong
	}
	n, err := r.conn.read(r.buf[r.heard:])
	if err != nil {
		return err
	}
	r.heard += n
	state, err := p.script.steps[r.step].check(r.buf[:r.heard])
	if err != nil || state == more {
		return err
	}
	if r.step++; r.step < len(p.script.steps) {
		return p.say(r)
	}
	p.finish(r, state)
	return nil
}

// finish counts an operation and begins the next.
func (p *player) finish(r *playing, state progress) {
	p.tally.note(time.Since(r.began), nil)
	r.step, r.heard, r.used = p.script.keep, 0, true
	if p.script.keep < 0 {
		p.drop(r)
	} else if state == last {
		p.drop(r)
		p.tally.reopened++
	}
	p.begin(r)
}
