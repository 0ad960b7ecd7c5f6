//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// measureLog asks egressd questions about a log of many records. They are compared with the time that cat takes for it.
func (b *bench) measureLog(ctx context.Context) ([]row, error) {
	if b.egressd == "" {
		return nil, nil
	}
	dir := filepath.Join(b.base, "asked")
	flow, key, err := writeLog(ctx, dir, b.records)
	if err != nil {
		return nil, err
	}
	segments, err := audit.Segments(dir)
	if err != nil {
		return nil, err
	}
	questions := [][]string{append([]string{"cat"}, segments...)}
	for _, words := range logQuestions(flow, key) {
		questions = append(questions, append([]string{b.egressd}, strings.Fields(words+" --dir "+dir)...))
	}
	elapsed, cpu := make([][]float64, len(questions)), make([][]float64, len(questions))
	for range b.rounds {
		for i, argv := range questions {
			took, used, err := timed(ctx, argv)
			if err != nil {
				return nil, err
			}
			elapsed[i], cpu[i] = append(elapsed[i], took.Seconds()*1000), append(cpu[i], used.Seconds()*1000)
		}
	}
	var rows []row
	for i, name := range append([]string{"cat"}, logQuestions("ID", "KEY")...) {
		r := row{Scenario: "log", Proxy: name, Rounds: b.rounds, Value: number(median(elapsed[i])), Unit: "ms", CPU: numberOf(median(cpu[i])), CPUUnit: "ms"}
		if q, ok := ratios(elapsed[i], elapsed[0]); ok && i > 0 {
			r.Ratio = &ratio{number(q.Median), number(q.Min), number(q.Max)}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// logQuestions are commands about a log, and about one flow in it.
func logQuestions(flow, key string) []string {
	return []string{
		"why " + flow, "log host:h7.example.test", "log verdict:deny", "log", "log by host", "log signals", "log verify --key " + key,
	}
}

// timed runs a command, and returns how long it took and its CPU time.
func timed(ctx context.Context, argv []string) (took, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Discard, &complaint
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, complaint.Bytes())
	}
	return time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// allowExample allows what is below example.test.
type allowExample struct{}

func (allowExample) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	if strings.HasSuffix(r.Destination.Host, ".example.test") {
		return policy.Decision{Verdict: policy.Allow, Rule: "example", Layer: policy.User}, nil
	}
	return policy.Decision{Verdict: policy.Abstain}, nil
}

// publicAddress resolves each name to one public address. Nothing is sent to it.
type publicAddress struct{}

func (publicAddress) Cached(string) ([]netip.Addr, []string, bool) {
	return []netip.Addr{netip.MustParseAddr("104.16.0.34")}, nil, true
}

func (p publicAddress) Lookup(_ context.Context, name string) ([]netip.Addr, []string, error) {
	addrs, aliases, _ := p.Cached(name)
	return addrs, aliases, nil
}

// writeLog has a gate write a log of at least that many records: of tunnels to 500 hosts by 40 programs in 5 sandboxes, fifty
// open at a time, and of denials. It returns the id of a flow in the middle, and the root key.
func writeLog(ctx context.Context, dir string, records int) (flow, key string, err error) {
	log, err := audit.Create(dir, audit.Options{Durability: audit.Process, Vouch: func(_, root string) error {
		key = root
		return nil
	}})
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	gate, err := openGate(ctx, log)
	if err != nil {
		return "", "", err
	}
	defer func() {
		gate.Shut()
		gate.CloseLeft()
		gate.Records.Settle()
	}()
	tunnels := records * 5 / 9 // nine of ten have two records; the others are denied, and most of these are only counted
	open := make([]*egress.Flow, 50)
	for n := range tunnels {
		place := &open[n%len(open)]
		if f := *place; f != nil {
			f.Close(egress.End{Up: int64(n % 9000), Down: int64(n % 90000), Outcome: "closed"})
		}
		if *place, err = openTunnel(ctx, gate, n); err != nil {
			return "", "", err
		}
		if *place != nil && n <= tunnels/2 {
			flow = (*place).ID().String()
		}
	}
	return flow, key, nil
}

const logSandboxes = 5

func openGate(ctx context.Context, log *audit.Log) (*egress.Gate, error) {
	var entries []sandbox.Entry
	for i := range logSandboxes {
		entries = append(entries, sandbox.Entry{Name: fmt.Sprintf("ci-%d", i), Sources: []netip.Prefix{netip.PrefixFrom(logSource(i), 32)}})
	}
	sandboxes, err := sandbox.NewDirectory(entries)
	if err != nil {
		return nil, err
	}
	gate := egress.New(egress.Config{Log: log, Sandboxes: sandboxes, Resolver: publicAddress{}})
	return gate, gate.SetPolicy(ctx, policy.New(allowExample{}), "bench")
}

func logSource(sandbox int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(sandbox + 1)}) }

// openTunnel asks for the n-th tunnel. It returns nil if the tunnel is denied.
func openTunnel(ctx context.Context, gate *egress.Gate, n int) (*egress.Flow, error) {
	host := fmt.Sprintf("h%d.example.test", n%500)
	if n%10 == 0 {
		host = fmt.Sprintf("d%d.elsewhere.test", n%70)
	}
	dst, err := policy.ParseDestination(host + ":443")
	if err != nil {
		return nil, err
	}
	peer := sandbox.Peer{
		Addr:    netip.AddrPortFrom(logSource(n%logSandboxes), uint16(10000+n%50000)),
		Process: &policy.Process{PID: 100 + n%30000, Exe: fmt.Sprintf("/usr/bin/tool%d", n%40), Argv: []string{"tool", "--url", "https://" + host + "/"}},
	}
	f, err := gate.Open(ctx, peer, policy.Request{Via: policy.ViaConnect, Destination: dst})
	var refused *egress.Refusal
	if errors.As(err, &refused) && n%10 == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = f.Narrow(context.Background(), func(r *policy.Request) {
		r.TLS = &policy.ClientHello{ServerName: host, ALPN: []string{"h2", "http/1.1"}, JA4: "t13d1516h2_8daaf6152771_02713d6af862"}
	})
	return f, err
}
