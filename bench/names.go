//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A nameJob is one kind of question to egressd's name server.
type nameJob struct {
	name  string
	rcode byte
	ask   func(n uint64) string // of the n-th question
}

func nameJobs() []nameJob {
	return []nameJob{
		{"names-cached", 0, func(uint64) string { return "www." + originName }},
		{"names-denied", refusedName, func(uint64) string { return deniedName }},
		{"names-forwarded", 0, func(n uint64) string { return fmt.Sprintf("n%d.%s", n, originName) }},
	}
}

const (
	nameClients = 8
	refusedName = 5 // REFUSED
	nameTimeout = 5 * time.Second
)

// A nameServer is an egressd that answers names, or what it is compared with.
type nameServer struct {
	name   string
	at     string
	echoes bool // it sends back what it gets
	cpu    func() (time.Duration, error)
	stop   func()
}

// measureNames asks egressd's name server, with both kinds of durability: the CPU
// of one question is what counts, beside that of a program that sends back what it
// gets.
func (b *bench) measureNames(ctx context.Context) (rows []row, err error) {
	if b.egressd == "" {
		return nil, nil
	}
	var servers []*nameServer
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	add := func(s *nameServer, err error) error {
		if err == nil {
			servers = append(servers, s)
		}
		return err
	}
	if err := add(b.startEcho()); err != nil {
		return nil, err
	}
	for _, binary := range []struct{ path, name string }{{b.before, "before "}, {b.egressd, "egressd "}} {
		for _, durability := range []string{"process", "disk"} {
			if binary.path == "" {
				continue
			}
			if err := add(b.startNames(binary.path, binary.name+durability, durability)); err != nil {
				return nil, err
			}
		}
	}
	var asked atomic.Uint64
	for _, j := range nameJobs() {
		cells := make([][]cell, len(servers))
		for round := range b.rounds {
			for i, s := range servers {
				c, err := s.cell(ctx, j, &asked, b.length)
				if err != nil {
					return rows, fmt.Errorf("%s, %s: %w", j.name, s.name, err)
				}
				cells[i] = append(cells[i], c)
				fmt.Fprintf(b.errOut, "bench: %s %d/%d %s: %s µs\n", j.name, round+1, b.rounds, s.name, significant(number(microsPerOp(c))))
			}
		}
		for i, s := range servers {
			values := each(cells[i], rate)
			r := row{Scenario: j.name, Proxy: s.name, Rounds: b.rounds, Value: number(median(values)), Unit: "/s"}
			cost := each(cells[i], microsPerOp)
			r.CPU, r.CPUUnit = numberOf(median(cost)), "µs"
			if q, ok := ratios(cost, each(cells[0], microsPerOp)); ok && !s.echoes {
				r.Ratio = &ratio{number(q.Median), number(q.Min), number(q.Max)}
			}
			for _, c := range cells[i] {
				r.Errors += c.Errors
				r.First = c.First
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// startEcho starts a program that sends back what it gets.
func (b *bench) startEcho() (*nameServer, error) {
	p, err := startRole("echo", b.errOut)
	if err != nil {
		return nil, err
	}
	var port int
	if err := p.out.Decode(&port); err != nil {
		p.stop()
		return nil, fmt.Errorf("waiting for the echo: %w", err)
	}
	cpu := func() (time.Duration, error) { return cpuTime(p.cmd.Process.Pid) }
	return &nameServer{name: direct, at: fmt.Sprintf("127.0.0.1:%d", port), echoes: true, cpu: cpu, stop: p.stop}, nil
}

// serveEcho sends back what it gets at a port that it writes to out, until in ends.
func serveEcho(in io.Reader, out io.Writer) error {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		c.Close()
	}()
	if err := json.NewEncoder(out).Encode(c.LocalAddr().(*net.UDPAddr).Port); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			_, err = c.WriteToUDPAddrPort(buf[:n], from)
		}
		if err != nil {
			return err
		}
	}
}

// startNames starts an egressd with a name server and nothing else.
func (b *bench) startNames(binary, name, durability string) (*nameServer, error) {
	path, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.base, "names-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "egressd.yaml")
	text := fmt.Sprintf(`version: 1
listen: {proxy: ["127.0.0.1:0"], dns: ["127.0.0.1:%d"]}
allow: ["*.%s"]
unsafe_allow: ["127.0.0.0/8:*"]
upstream: {dns: ["127.0.0.1:%d"]}
limits: {dns_queries_per_second: 1000000, dns_name_bytes: 1000000000}
audit: {dir: %q, durability: %s}
`, port, originName, b.origins.DNS, filepath.Join(dir, "log"), durability)
	if err := writeFile(config, text); err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "serve", "--config", config)
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = output, output, dir, quietEnvironment(dir)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &running{dir: dir, cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended shows in its output
		close(r.ended)
	}()
	s := &nameServer{name: name, at: fmt.Sprintf("127.0.0.1:%d", port), cpu: r.cpu, stop: r.stop}
	if err := s.await(r); err != nil {
		r.stop()
		return nil, fmt.Errorf("starting %s: %w\n%s", name, err, r.lastOutput())
	}
	return s, nil
}

// await returns once the server answers.
func (s *nameServer) await(r *running) error {
	for late := time.Now().Add(startPatience); time.Now().Before(late); {
		select {
		case <-r.ended:
			return errors.New("it ended at once")
		default:
		}
		conn, err := net.Dial("udp4", s.at)
		if err != nil {
			return err
		}
		err = ask(conn, deniedName, 1, nameCheck{refusedName, false}, pollInterval)
		conn.Close()
		if err == nil {
			return nil
		}
		time.Sleep(pollInterval)
	}
	return fmt.Errorf("it does not answer after %v", startPatience)
}

func (s *nameServer) cell(ctx context.Context, j nameJob, asked *atomic.Uint64, length time.Duration) (cell, error) {
	if _, err := s.questions(ctx, j, asked, min(length, warmUp)); err != nil {
		return cell{}, err
	}
	time.Sleep(settle)
	before, err := s.cpu()
	if err != nil {
		return cell{}, err
	}
	c, err := s.questions(ctx, j, asked, length)
	if err != nil {
		return cell{}, err
	}
	time.Sleep(settle)
	after, err := s.cpu()
	c.cpu = after - before
	return c, err
}

// questions asks from several sockets, on each one question after the other.
func (s *nameServer) questions(ctx context.Context, j nameJob, asked *atomic.Uint64, length time.Duration) (cell, error) {
	var done, failed atomic.Int64
	var clients sync.WaitGroup
	first := make(chan error, nameClients)
	began := time.Now()
	for range nameClients {
		conn, err := net.Dial("udp4", s.at)
		if err != nil {
			return cell{}, err
		}
		clients.Go(func() {
			defer conn.Close()
			for ctx.Err() == nil && time.Since(began) < length {
				n := asked.Add(1)
				if err := ask(conn, j.ask(n), uint16(n), nameCheck{j.rcode, s.echoes}, nameTimeout); err != nil {
					if failed.Add(1) == 1 {
						first <- err
					}
					continue
				}
				done.Add(1)
			}
		})
	}
	clients.Wait()
	c := cell{result: result{Ops: done.Load(), Errors: failed.Load(), Elapsed: time.Since(began)}}
	if c.Errors > 0 {
		c.First = (<-first).Error()
	}
	if c.Ops == 0 {
		return c, fmt.Errorf("no answer: %s", c.First)
	}
	return c, ctx.Err()
}

// A nameCheck is what has to come back.
type nameCheck struct {
	rcode byte
	echo  bool // the question itself
}

// ask asks for the IPv4 address of a name and checks the answer.
func ask(conn net.Conn, name string, id uint16, want nameCheck, patience time.Duration) error {
	question := binary.BigEndian.AppendUint16(make([]byte, 0, 128), id)
	question = append(question, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	for label := range strings.SplitSeq(name, ".") {
		question = append(append(question, byte(len(label))), label...)
	}
	question = append(question, 0, 0, typeA, 0, classIN)
	if _, err := conn.Write(question); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	switch {
	case err != nil:
		return err
	case n < dnsHeader || binary.BigEndian.Uint16(answer) != id:
		return errors.New("the answer is to another question")
	case want.echo && bytes.Equal(answer[:n], question):
	case want.echo:
		return errors.New("the answer is not the question")
	case answer[3]&0xf != want.rcode:
		return fmt.Errorf("the response code is %d, not %d", answer[3]&0xf, want.rcode)
	case want.rcode == 0 && binary.BigEndian.Uint16(answer[6:]) != 1:
		return errors.New("the answer has no address")
	}
	return nil
}
