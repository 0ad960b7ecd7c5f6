//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// A script is what the load generator says on one connection, and what it
// expects to hear. Scripts are not changed once made, so that all connections
// of a job share one.
type script struct {
	port  int // of 127.0.0.1, to dial
	steps []step
	keep  int // the step to go on with after the last; -1 resets the connection
}

// A step is one thing to say and the answer to it.
type step struct {
	send []byte
	// check judges all that was heard since send. An error fails the script.
	check func(heard []byte) (progress, error)
}

// progress is how far an answer is.
type progress uint8

const (
	more     progress = iota // bytes are missing
	complete                 // the next step may begin
	last                     // complete, and the other side ends the connection
)

// deniedName is on no allow-list.
const deniedName = "denied.test"

// connectScript: CONNECT where there is a proxy, hello, 1 byte back, close.
func connectScript(j *job) *script {
	s := j.tunnel(j.Origins.Flight)
	s.steps = append(s.steps, flightStep(j.Hello))
	return s
}

// pingScript opens a tunnel, and then sends a byte there and back.
func pingScript(j *job) *script {
	s := connectScript(j)
	s.keep = len(s.steps)
	s.steps = append(s.steps, step{[]byte{'p'}, exactly('p')})
	return s
}

// deniedScript: CONNECT to a name that is not allowed. Without a proxy, the
// flight origin answers the same bytes with one.
func deniedScript(j *job) *script {
	head := connectHead(deniedName, 443)
	if j.Proxy == 0 {
		return &script{port: j.Origins.Flight, steps: []step{flightStep(head)}, keep: -1}
	}
	return &script{port: j.Proxy, steps: []step{{head, refusal}}, keep: -1}
}

// httpScript: requests on a connection that is kept alive.
func httpScript(j *job) *script {
	authority := net.JoinHostPort(j.Host, strconv.Itoa(j.Origins.HTTP))
	port, target := j.Origins.HTTP, "/"
	if j.Proxy != 0 {
		port, target = j.Proxy, "http://"+authority+"/"
	}
	request := "GET " + target + " HTTP/1.1\r\nHost: " + authority + "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
	return &script{port: port, steps: []step{{[]byte(request), thePage}}}
}

// tunnel returns the script that reaches a port of the origins: no step where
// there is no proxy, else CONNECT.
func (j *job) tunnel(port int) *script { return j.tunnelTo(j.Host, port) }

// tunnelTo is tunnel with another host to ask the proxy for.
func (j *job) tunnelTo(host string, port int) *script {
	if j.Proxy == 0 {
		return &script{port: port, keep: -1}
	}
	return &script{port: j.Proxy, steps: []step{{connectHead(host, port), established}}, keep: -1}
}

func connectHead(host string, port int) []byte {
	target := net.JoinHostPort(host, strconv.Itoa(port))
	return []byte("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\nUser-Agent: bench\r\n\r\n")
}

func flightStep(flight []byte) step { return step{flight, exactly(sum(flight))} }

// exactly expects one byte.
func exactly(want byte) func([]byte) (progress, error) {
	return func(heard []byte) (progress, error) {
		if len(heard) != 1 || heard[0] != want {
			return more, fmt.Errorf("wrong answer %.10x, want %02x", heard, want)
		}
		return complete, nil
	}
}

// established expects a CONNECT to be granted.
func established(heard []byte) (progress, error) {
	r, done, err := parseReply(heard)
	if err != nil || !done {
		return more, err
	}
	if r.status != 200 {
		return more, fmt.Errorf("CONNECT was answered with status %d", r.status)
	}
	return complete, nil
}

// refusal expects a CONNECT to be denied.
func refusal(heard []byte) (progress, error) {
	r, done, err := parseReply(heard)
	if err != nil || !done {
		return more, err
	}
	if r.status/100 != 4 {
		return more, fmt.Errorf("a denied CONNECT was answered with status %d", r.status)
	}
	return complete, nil
}

// thePage expects what the HTTP origin serves.
func thePage(heard []byte) (progress, error) {
	r, done, err := parseReply(heard)
	switch {
	case err != nil || !done:
		return more, err
	case r.status != 200 || string(r.body) != pageBody:
		return more, fmt.Errorf("wrong answer: status %d, %.60q", r.status, r.body)
	case r.closes:
		return last, nil
	}
	return complete, nil
}

var errTooLong = errors.New("answer is too long")

// open dials and goes through all steps, blocking. buf takes what is heard.
func (s *script) open(buf []byte) (client, error) {
	c, err := dial(s.port)
	if err != nil {
		return c, err
	}
	for i := range s.steps {
		if err := c.do(&s.steps[i], buf); err != nil {
			c.close()
			return c, err
		}
	}
	return c, nil
}

// do goes through one step, blocking.
func (c client) do(s *step, buf []byte) error {
	if err := c.write(s.send); err != nil {
		return err
	}
	for n := 0; n < len(buf); {
		m, err := c.read(buf[n:])
		if err != nil {
			return err
		}
		n += m
		if p, err := s.check(buf[:n]); err != nil || p != more {
			return err
		}
	}
	return errTooLong
}
