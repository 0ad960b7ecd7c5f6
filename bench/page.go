//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A pageClient is a browser that has the page of egressd ui open.
type pageClient struct {
	cmd    *exec.Cmd
	began  time.Time
	base   *url.URL
	cookie string
	client http.Client
}

const pagePatience = 5 * time.Minute

// openPage starts egressd ui for a log and uses its link.
func openPage(egressd, dir string) (*pageClient, error) {
	path, err := filepath.Abs(egressd)
	if err != nil {
		return nil, err
	}
	p := &pageClient{cmd: exec.Command(path, "ui", "--no-open", "--dir", dir), began: time.Now()}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	link, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		p.base, err = url.Parse(strings.TrimSpace(link))
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("reading the link of egressd ui: %w", err)
	}
	p.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", p.base.Port()))
	}}
	answer, err := p.get(context.Background(), p.base.Path)
	if err != nil {
		p.close()
		return nil, err
	}
	answer.Body.Close()
	for _, c := range answer.Cookies() {
		p.cookie = c.Name + "=" + c.Value
	}
	return p, nil
}

func (p *pageClient) close() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *pageClient) get(ctx context.Context, target string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.base.Host+target, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Cookie", p.cookie)
	answer, err := p.client.Do(r)
	if err == nil && answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		err = fmt.Errorf("egressd ui answers %s", answer.Status)
	}
	return answer, err
}

// view reads a view, and reports whether it is of the whole log.
func (p *pageClient) view(ctx context.Context, target string) (whole bool, err error) {
	answer, err := p.get(ctx, target)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return !strings.Contains(string(text), " data-reading>"), err
}

// watch keeps the page open as a browser does: it reads the view again after each event.
func (p *pageClient) watch(ctx context.Context) error {
	answer, err := p.get(ctx, "/v1/events")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data:") {
			if _, err := p.view(ctx, "/"); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// measurePage measures the page for a log of many records, and what decisions take while pages are open.
func (b *bench) measurePage(ctx context.Context) ([]row, error) {
	if b.egressd == "" {
		return nil, nil
	}
	dir := filepath.Join(b.base, "page")
	if err := writePageLog(dir, b.records); err != nil {
		return nil, err
	}
	rows, err := b.pageRows(ctx, dir)
	if err != nil {
		return rows, err
	}
	more, err := b.decisionRows(ctx)
	return append(rows, more...), err
}

// pageFilters are filters that a person may try one after the other.
func pageFilters() []string {
	return []string{"/?q=verdict:deny", "/?q=host:h7.example.test", "/?q=up:%3E4k+sandbox:ci-1", "/destinations?q=proc:curl", "/requests?q=-verdict:deny+since:2h"}
}

func (b *bench) pageRows(ctx context.Context, dir string) ([]row, error) {
	p, err := openPage(b.egressd, dir)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if _, err := p.view(ctx, "/"); err != nil {
		return nil, err
	}
	first := time.Since(p.began)
	for whole := false; !whole; {
		if whole, err = p.view(ctx, "/help"); err != nil {
			return nil, err
		}
		if time.Since(p.began) > pagePatience {
			return nil, errors.New("the page has not read the log")
		}
	}
	read := time.Since(p.began)
	var times []float64
	for range b.rounds {
		for _, target := range pageFilters() {
			began := time.Now()
			if _, err := p.view(ctx, target); err != nil {
				return nil, err
			}
			times = append(times, time.Since(began).Seconds()*1000)
		}
	}
	kib, err := ownKiB(p.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	label := func(what string) string { return fmt.Sprintf("%s, %d records", what, b.records) }
	return []row{
		{Scenario: "page", Proxy: label("first view"), Rounds: 1, Value: number(first.Seconds() * 1000), Unit: "ms"},
		{Scenario: "page", Proxy: label("all read"), Rounds: 1, Value: number(read.Seconds() * 1000), Unit: "ms"},
		{Scenario: "page", Proxy: label("filter"), Rounds: len(times), Value: number(median(times)), Unit: "ms"},
		{Scenario: "page", Proxy: label("memory"), Rounds: 1, Value: number(float64(kib) / 1024), Unit: "MiB"},
	}, nil
}

const pagesOpen = 5

// decisionRows measures connections one at a time through egressd, alone and while five pages are open that show its log
// as it grows.
func (b *bench) decisionRows(ctx context.Context) ([]row, error) {
	var rows []row
	for _, c := range b.contenders {
		if c.running == nil || !strings.HasPrefix(c.name, "egressd ") {
			continue
		}
		alone, err := b.connections(c)
		if err != nil {
			return rows, err
		}
		watched, err := b.connectionsBesidePages(ctx, c)
		if err != nil {
			return rows, err
		}
		rows = append(rows, row{Scenario: "page", Proxy: c.name + ", no page", Rounds: b.rounds, Value: number(median(alone)), Unit: "µs"},
			row{Scenario: "page", Proxy: fmt.Sprintf("%s, %d pages", c.name, pagesOpen), Rounds: b.rounds, Value: number(median(watched)), Unit: "µs", Added: numberOf(median(watched) - median(alone))})
	}
	return rows, nil
}

func (b *bench) connections(c *contender) (medians []float64, err error) {
	for range b.rounds {
		j := b.job(sequentialJob, c, c.running)
		j.Length = b.length
		r, err := b.order(j)
		if err != nil {
			return nil, err
		}
		medians = append(medians, micros(r.P50))
	}
	return medians, nil
}

func (b *bench) connectionsBesidePages(ctx context.Context, c *contender) ([]float64, error) {
	p, err := openPage(b.egressd, filepath.Join(c.running.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, pagesOpen)
	for range pagesOpen {
		go func() { ended <- p.watch(ctx) }()
	}
	medians, err := b.connections(c)
	cancel()
	for range pagesOpen {
		if watching := <-ended; watching != nil && !errors.Is(watching, context.Canceled) {
			err = errors.Join(err, watching)
		}
	}
	return medians, err
}

// writePageLog writes a log of records of 500 hosts, 40 programs and 5 sandboxes over a day. It is not signed.
func writePageLog(dir string, records int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "00000001.log"))
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	began := time.Now().Add(-24 * time.Hour)
	for seq := 0; seq < records; seq++ {
		at := began.Add(time.Duration(seq) * 24 * time.Hour / time.Duration(records)).UTC().Format("2006-01-02T15:04:05.000000Z")
		flow := seq &^ 1
		n := flow / 2
		who := fmt.Sprintf(`"flow":"%s","sandbox":"ci-%d","via":"connect","dst":{"host":"h%d.example.test","port":443,"addr":"192.0.2.1"}`, flowID(flow), n%5, n%500)
		if seq&1 == 1 {
			fmt.Fprintf(out, `{"v":1,"seq":%d,"time":"%s","kind":"close",%s,"bytes":{"up":%d,"down":%d},"duration_ms":%d}`+"\n", seq, at, who, n%9000, n%90000, n%700)
			continue
		}
		decision := `{"action":"allow","rule":"hosts","layer":"user","policy":"sha256:1"}`
		if n%10 == 0 {
			decision = `{"action":"deny","rule":"default","layer":"builtin","class":"default-deny","policy":"sha256:1"}`
		}
		fmt.Fprintf(out, `{"v":1,"seq":%d,"time":"%s","kind":"open",%s,"process":{"pid":%d,"exe":"/usr/bin/tool%d","argv":["tool"]},"decision":%s}`+"\n", seq, at, who, n%30000, n%40, decision)
	}
	return errors.Join(out.Flush(), f.Close())
}

// flowID writes a number as the id of a flow.
func flowID(n int) string {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	id := []byte("0000000000")
	for i := len(id) - 1; n > 0; i, n = i-1, n/32 {
		id[i] = digits[n%32]
	}
	return string(id)
}
