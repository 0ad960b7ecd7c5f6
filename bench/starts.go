//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A launcher is one way to run a program.
type launcher struct {
	name string
	argv []string
}

// measureStarts runs true alone and in sandboxes, one after the other in every
// round: what counts is how much longer it takes.
func (b *bench) measureStarts(ctx context.Context) ([]row, error) {
	launchers, err := b.launchers()
	if err != nil {
		return nil, err
	}
	times := make([][]float64, len(launchers))
	for range b.starts {
		for i, s := range launchers {
			took, err := s.run(ctx, b.base)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			times[i] = append(times[i], took.Seconds()*1000)
		}
	}
	var rows []row
	for i, s := range launchers {
		r := row{Scenario: "run true", Proxy: s.name, Rounds: b.starts, Value: number(median(times[i])), Unit: "ms"}
		if i > 0 {
			added := make([]float64, b.starts)
			for round := range added {
				added[round] = times[i][round] - times[0][round]
			}
			r.Added = numberOf(median(added))
			if q, ok := ratios(times[i], times[0]); ok {
				r.Ratio = &ratio{number(q.Median), number(q.Min), number(q.Max)}
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// launchers are those that are installed, true itself first.
func (b *bench) launchers() ([]launcher, error) {
	all := []launcher{{direct, []string{"true"}}}
	if b.egressd != "" {
		path, err := filepath.Abs(b.egressd)
		if err != nil {
			return nil, err
		}
		config := filepath.Join(b.base, "run.yaml")
		if err := writeFile(config, "version: 1\nallow: [\"*."+originName+"\"]\n"); err != nil {
			return nil, err
		}
		all = append(all, launcher{"egressd run", []string{path, "run", "-q", "--config", config, "--", "true"}})
	}
	srt, err := b.srtProgram()
	if err != nil {
		return nil, err
	}
	for _, peer := range []launcher{{"bwrap", []string{"bwrap", "--unshare-net", "--bind", "/", "/", "true"}}, {"srt", []string{srt, "-c", "true"}}} {
		if _, err := exec.LookPath(peer.argv[0]); err != nil {
			b.absent = append(b.absent, "absent: "+peer.name+" is not installed")
			continue
		}
		all = append(all, peer)
	}
	return all, nil
}

// srtProgram is the name or the path of srt, which is installed where a version was asked
// for.
func (b *bench) srtProgram() (string, error) {
	if b.srt == "" {
		return "srt", nil
	}
	folder := filepath.Join(b.base, "srt")
	install := exec.Command("npm", "install", "--no-fund", "--no-audit", "--loglevel=error", "--prefix", folder, "@anthropic-ai/sandbox-runtime@"+b.srt)
	install.Stdout, install.Stderr = os.Stderr, os.Stderr
	if err := install.Run(); err != nil {
		return "", fmt.Errorf("npm install of srt: %w", err)
	}
	return filepath.Join(folder, "node_modules", ".bin", "srt"), nil
}

func (s *launcher) run(ctx context.Context, dir string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir)
	began := time.Now()
	err := cmd.Run()
	return time.Since(began), err
}
