// Package policystatus finds out from the audit log, and from what the daemon keeps on disk, which
// policy is in force and how fresh its bundles are. It needs no daemon and asks no server.
package policystatus

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/rego/bundle"
)

// A Status says which policy is in force, and from what it was made.
type Status struct {
	OK       bool              `json:"ok"`
	Running  bool              `json:"running"`
	Policy   string            `json:"policy,omitempty"` // digest of the one in force, or that was when egressd ended
	Since    time.Time         `json:"since,omitzero"`
	Source   string            `json:"source,omitempty"` // how it came into force
	Rejected *config.Rejection `json:"rejected,omitempty"`
	Failed   *Failures         `json:"failed,omitempty"`
	File     string            `json:"file_error,omitempty"` // why the policy file cannot be read now
	Other    string            `json:"other_file,omitempty"` // the file that egressd serve runs with, if another was asked about
	Upstream *UpstreamState    `json:"upstream,omitempty"`   // as a running daemon has it
	Bundles  []Bundle          `json:"bundles"`

	// Observing is for whom and until when everything public passes that no rule is about.
	Observing []policy.Observation `json:"observing,omitempty"`

	// Notified are those who are told of questions, as a running daemon has them.
	Notified []Notified `json:"notified,omitempty"`

	loaded string // the file with which egressd started last
}

// An UpstreamState is the proxy that egressd connects through.
type UpstreamState struct {
	Proxy   string `json:"proxy"`
	ByName  bool   `json:"by_name"`
	GivesUp string `json:"gives_up,omitempty"`
}

// A Notified is one of "notify.to", and what came of the messages to it.
type Notified struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Sent   int64     `json:"sent"`
	Failed int64     `json:"failed"` // attempts
	Last   time.Time `json:"last,omitzero"`
	Error  string    `json:"error,omitempty"` // of the last attempt, if that failed
}

// Failures counts decisions that the policy in force failed to make. Each was denied with policy-error.
type Failures struct {
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
	Where string    `json:"where"` // what was asked for, the last time
}

// A Bundle is the state of one bundle of the policy file.
type Bundle struct {
	Entry    string    `json:"entry,omitempty"` // in the policy file
	Source   string    `json:"source"`
	Shadow   bool      `json:"shadow,omitempty"` // it decides nothing
	Revision string    `json:"revision,omitempty"`
	Signed   bool      `json:"signed"`
	Issued   time.Time `json:"issued,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`
	Fetched  time.Time `json:"fetched,omitzero"`
	Heard    time.Time `json:"heard,omitzero"`
	Tried    time.Time `json:"tried,omitzero"`
	Stale    string    `json:"stale,omitempty"` // why it does not count
	Error    string    `json:"error,omitempty"` // of the last attempt
}

// Read reports on the policy of the configuration at path, and on the log in dir; an empty dir stands for
// the log that the configuration names. If the configuration cannot be read, Read needs dir, and
// Status.File says why.
func Read(path, dir string) (*Status, error) {
	s := &Status{Bundles: []Bundle{}}
	cfg, err := config.Load(path)
	switch {
	case err == nil:
		s.Observing = cfg.File.Observing()
		s.Bundles = append(s.Bundles, Bundles(cfg)...)
	case dir == "":
		return nil, err
	default:
		s.File = err.Error()
	}
	if dir == "" {
		if dir, err = cfg.AuditDir(); err != nil {
			return nil, err
		}
	}
	if err := s.readLog(dir); err != nil {
		return nil, err
	}
	if cfg != nil && path != "" {
		s.Other = s.otherThan(cfg.Path)
	}
	s.OK = s.good()
	return s, nil
}

// otherThan returns the policy file that egressd runs with if that is not the one at path.
func (s *Status) otherThan(path string) string {
	if !s.Running || !filepath.IsAbs(s.loaded) {
		return ""
	}
	asked, err := os.Stat(path)
	inForce, errInForce := os.Stat(s.loaded)
	if whole, errAbs := filepath.Abs(path); errAbs == nil && whole == s.loaded || err == nil && errInForce == nil && os.SameFile(asked, inForce) {
		return ""
	}
	return s.loaded
}

func (s *Status) good() bool {
	for _, b := range s.Bundles {
		if b.Stale != "" || b.Error != "" {
			return false
		}
	}
	return s.File == "" && s.Other == "" && (s.Rejected == nil || !s.Rejected.Current)
}

// readLog finds out from the records about policies what is in force. There may be
// no log yet.
func (s *Status) readLog(dir string) (err error) {
	if s.Running, err = audit.Writing(dir); err != nil {
		return hint.Failed(err, "egressd policy show --dir DIR, as a user who may read it")
	}
	lines, err := audit.NewReader(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return hint.Failed(err, "egressd policy show --dir DIR, as a user who may read it")
	}
	defer lines.Close()
	for {
		text, err := lines.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return hint.Failed(err, "keep a copy of "+dir+" as it is")
		case !bytes.Contains(text, []byte(`"kind":"policy"`)) && !bytes.Contains(text, []byte(`"class":"policy-error"`)):
			continue
		}
		r, err := record.Decode(text)
		if err != nil {
			return hint.Failed(err, "keep a copy of "+dir+" as it is")
		}
		s.follow(r)
	}
}

func (s *Status) follow(r *record.Record) {
	switch {
	case r.Decision == nil:
		return
	case r.Kind != record.KindPolicy:
		s.count(r)
		return
	}
	done, rest, _ := strings.Cut(r.Note, " ")
	if done == "loaded" {
		s.loaded = rest
	}
	switch done {
	case "loaded", "reloaded", "renewed", "grants:":
		s.Policy, s.Since, s.Source, s.Failed = r.Decision.Policy, r.Time, r.Note, nil
		if s.Rejected != nil && done != "renewed" && done != "grants:" { // which do not read the file
			s.Rejected.Current = false
		}
	case "rejected":
		_, reason, _ := strings.Cut(r.Note, " ")
		s.Rejected = &config.Rejection{Time: r.Time, Reason: reason, Current: true}
	}
}

func (s *Status) count(r *record.Record) {
	if r.Decision.Class != string(policy.PolicyError) || r.Decision.Policy != s.Policy {
		return
	}
	if s.Failed == nil {
		s.Failed = new(Failures)
	}
	s.Failed.Count += int(r.Times())
	s.Failed.Last = r.Time
	if r.Dst != nil {
		s.Failed.Where = r.Dst.Host
	}
}

// Bundles reports on the bundles of the configuration as they are on disk.
func Bundles(c *config.Config) (all []Bundle) {
	sources, at := c.Sources()
	for i := range sources {
		if one := &sources[i]; one.Bundle != "" {
			all = append(all, statusOfBundle(c, at[i], one))
		}
	}
	return all
}

// statusOfBundle looks at one bundle as it is on disk.
func statusOfBundle(c *config.Config, at string, s *file.RegoSource) Bundle {
	if s.Fetched() {
		return statusOfFetched(c, at, s)
	}
	v := Bundle{Entry: at, Source: c.Relative(s.Bundle), Shadow: s.Shadow}
	b, err := c.LocalBundle(s, nil)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.describe(b)
	return v
}

func (v *Bundle) describe(b *bundle.Bundle) {
	v.Revision, v.Signed, v.Issued, v.Expires = b.Revision, b.Signed, b.Issued, b.Expires
}

func statusOfFetched(c *config.Config, at string, s *file.RegoSource) Bundle {
	v := Bundle{Entry: at, Source: (&bundle.Source{URL: s.Bundle}).Label(), Shadow: s.Shadow}
	f, err := c.Feed(s)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	known := OfFeed(f.Feed)
	known.Entry, known.Shadow = v.Entry, v.Shadow
	return known
}

// OfFeed returns the state of a bundle that is fetched.
func OfFeed(f *bundle.Feed) Bundle {
	known := f.State()
	v := Bundle{Source: f.Source().Label(), Fetched: known.Fetched, Heard: known.Heard, Tried: known.Tried, Error: known.Error, Stale: f.Stale()}
	b, err := f.Good()
	switch {
	case err == nil:
		v.describe(b)
	case v.Error == "":
		v.Error = err.Error()
	}
	return v
}
