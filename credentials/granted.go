package credentials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/durable"
)

// An OAuth is a source that a token endpoint hands out (RFC 6749). Without RefreshToken it is asked by client credentials.
type OAuth struct {
	TokenURL     string
	ClientID     string
	ClientSecret *Source // nil for a public client
	Scopes       []string

	// RefreshToken is the file with the refresh token; "" for none. If the server replaces the token, egressd writes the new one
	// to that file before it uses the access token.
	RefreshToken string
}

// A GitHubApp is a source that GitHub hands out to an installation of an app.
type GitHubApp struct {
	ID, Installation string
	PrivateKey       *Source
	API              string            // default https://api.github.com
	Repositories     []string          // names without the owner; none for all of the installation
	Permissions      map[string]string // none for all of the installation
}

// CheckTokenURL returns an error for a URL that no secret may be sent to.
func CheckTokenURL(text string) error { return tokens.CheckURL(text) }

// Parts returns the sources that s reads itself: s, or what it needs to ask a server.
func (s *Source) Parts() (all []*Source) {
	switch {
	case s.OAuth != nil:
		if s.OAuth.ClientSecret != nil {
			all = append(all, s.OAuth.ClientSecret)
		}
		if s.OAuth.RefreshToken != "" {
			all = append(all, &Source{File: s.OAuth.RefreshToken})
		}
		return all
	case s.GitHubApp != nil && s.GitHubApp.PrivateKey != nil:
		return []*Source{s.GitHubApp.PrivateKey}
	}
	return []*Source{s}
}

// granted asks a server for the secret.
func (s *Source) granted(ctx context.Context, relative func(string) string, client *tokens.Asker) (text []byte, until int64, err error) {
	if client == nil {
		return nil, 0, errors.New("no server is asked for what this needs")
	}
	var got tokens.Token
	if s.OAuth != nil {
		got, err = s.OAuth.ask(ctx, client, relative)
	} else {
		got, err = s.GitHubApp.ask(ctx, client, relative)
	}
	switch {
	case err != nil:
		return nil, 0, err
	case got.Until.IsZero():
		return []byte(got.Text), 0, nil
	case !got.Until.After(time.Now()):
		return nil, 0, errors.New("the token that the server handed out has expired")
	}
	return []byte(got.Text), got.Until.Unix(), nil
}

func (o *OAuth) ask(ctx context.Context, client *tokens.Asker, relative func(string) string) (got tokens.Token, err error) {
	question := tokens.TokenRequest{URL: o.TokenURL, ClientID: o.ClientID, Scopes: o.Scopes}
	if o.ClientSecret != nil {
		if question.Secret, err = lineOf(ctx, o.ClientSecret, relative); err != nil {
			return got, fmt.Errorf("client_secret: %w", err)
		}
	}
	if o.RefreshToken == "" {
		return client.ByOAuth(ctx, question)
	}
	path := relative(o.RefreshToken)
	unlock, err := lockFolder(ctx, filepath.Dir(path))
	if err != nil {
		return got, fmt.Errorf("refresh_token: %w", err)
	}
	defer unlock()
	probe, err := os.CreateTemp(filepath.Dir(path), durable.Left+"*")
	if err != nil {
		return got, fmt.Errorf("refresh_token: the next one could not be kept: %w", err) // before the server takes this one back
	}
	probe.Close()
	os.Remove(probe.Name())
	if question.Refresh, err = lineOf(ctx, &Source{File: path}, func(path string) string { return path }); err != nil {
		return got, fmt.Errorf("refresh_token: %w", err)
	}
	if got, err = client.ByOAuth(ctx, question); err != nil || got.Refresh == "" || got.Refresh == question.Refresh {
		return got, err
	}
	if err := durable.Replace(path, []byte(got.Refresh+"\n"), 0o600); err != nil {
		return got, fmt.Errorf("the server has replaced the refresh token, and the new one cannot be kept: %w", err)
	}
	return got, nil
}

func (a *GitHubApp) ask(ctx context.Context, client *tokens.Asker, relative func(string) string) (got tokens.Token, err error) {
	key, _, err := a.PrivateKey.read(ctx, relative, nil)
	if err != nil {
		return got, fmt.Errorf("private_key: %w", err)
	}
	return client.ByGitHubApp(ctx, tokens.Installation{API: a.API, ID: a.ID, Number: a.Installation, Repositories: a.Repositories, Permissions: a.Permissions}, key)
}

// lineOf reads a secret without the line end that a file or a command has.
func lineOf(ctx context.Context, s *Source, relative func(string) string) (string, error) {
	text, _, err := s.read(ctx, relative, nil)
	if text = bytes.TrimRight(text, "\r\n"); err == nil && len(text) == 0 {
		err = errors.New("it is empty")
	}
	return string(text), err
}

// lockFolder keeps other processes of egressd from using a refresh token at the same time: of two, a server may take one for
// stolen.
func lockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
