package credentials

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/secret"
)

// awsKeys are the parts of a key of AWS.
type awsKeys struct {
	id, secret string
	token      string // of a session, or ""
	strikes    []*secret.Secret
}

// envSuffix ends the variable that from.env names: the two others are named alike.
const envSuffix = "ACCESS_KEY_ID"

// EnvNames are the variables of egressd's environment that the source reads.
func (s *Spec) EnvNames() (all []string) {
	for _, part := range s.From.Parts() {
		if part.Env == "" {
			continue
		}
		all = append(all, part.Env)
		if stem, ok := strings.CutSuffix(part.Env, envSuffix); ok && s.AWS != nil {
			all = append(all, stem+"SECRET_ACCESS_KEY", stem+"SESSION_TOKEN")
		}
	}
	return all
}

// readAWS reads the key, and when it ends, in Unix seconds or 0. The error holds nothing of it.
func (s *Spec) readAWS(ctx context.Context, relative func(string) string) (k awsKeys, until int64, err error) {
	switch from := &s.From; {
	case from.Profile != "":
		path := relative(from.File)
		text, err := readFile(path)
		if err != nil {
			return k, 0, err
		}
		if k, err = profileOf(text, from.Profile); err != nil {
			return k, 0, fmt.Errorf("%s: %w", path, err)
		}
	case from.File != "":
		text, err := readFile(relative(from.File))
		if err != nil {
			return k, 0, err
		}
		if k, until, err = processOutput(text); err != nil {
			return k, 0, fmt.Errorf("%s: %w", relative(from.File), err)
		}
	case from.Env != "":
		names := s.EnvNames()
		k = awsKeys{id: os.Getenv(names[0]), secret: os.Getenv(names[1]), token: os.Getenv(names[2])}
		if k.id == "" || k.secret == "" {
			return k, 0, fmt.Errorf("the variables %s and %s are not both set", names[0], names[1])
		}
	default:
		text, err := commandOutput(ctx, from.Command)
		if err != nil {
			return k, 0, err
		}
		if k, until, err = processOutput(text); err != nil {
			return k, 0, fmt.Errorf("%s: %w", from.Command[0], err)
		}
	}
	if err := k.check(); err != nil {
		return awsKeys{}, 0, err
	}
	return k, until, nil
}

// check makes what strikes the parts beside the secret out of responses: errors of S3 show the id, and the token in what was
// signed.
func (k *awsKeys) check() error {
	for _, part := range []struct{ name, text string }{{"access key id", k.id}, {"session token", k.token}} {
		if part.text == "" {
			continue
		}
		one, err := secret.New(secret.Options{Header: "Authorization", Text: []byte(part.text)})
		if err != nil {
			return fmt.Errorf("the %s: %w", part.name, err)
		}
		k.strikes = append(k.strikes, one)
	}
	return nil
}

// processOutput reads what a credential_process prints: "Process credential provider" in the guide of AWS's SDKs and tools.
func processOutput(text []byte) (k awsKeys, until int64, err error) {
	var printed struct {
		Version                       int
		AccessKeyID                   string `json:"AccessKeyId"`
		SecretAccessKey, SessionToken string
		Expiration                    time.Time
	}
	switch {
	case json.Unmarshal(text, &printed) != nil || printed.Version != 1 || printed.AccessKeyID == "" || printed.SecretAccessKey == "":
		return k, 0, errors.New(`it is no JSON object with "Version": 1, "AccessKeyId" and "SecretAccessKey"`)
	case printed.Expiration.IsZero():
	case !printed.Expiration.After(time.Now()):
		return k, 0, errors.New("the key has expired")
	default:
		until = printed.Expiration.Unix()
	}
	return awsKeys{id: printed.AccessKeyID, secret: printed.SecretAccessKey, token: printed.SessionToken}, until, nil
}

// profileOf reads the key of a profile in a file of profiles, such as ~/.aws/credentials. Keys that stand in it are all that
// it reads: a profile that asks somebody else is for a command.
func profileOf(text []byte, profile string) (k awsKeys, err error) {
	here, found := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			name, _, _ = strings.Cut(name, "]")
			name = strings.TrimSpace(name)
			here = name == profile || strings.Join(strings.Fields(name), " ") == "profile "+profile
			found = found || here
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if value = strings.TrimSpace(value); !here || !ok {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "aws_access_key_id":
			k.id = value
		case "aws_secret_access_key":
			k.secret = value
		case "aws_session_token":
			k.token = value
		}
	}
	switch {
	case !found:
		return awsKeys{}, errors.New("it has no profile " + profile)
	case k.id == "" || k.secret == "":
		return awsKeys{}, fmt.Errorf("the profile %s has no key in this file; write from: {command: [aws, configure, export-credentials, --profile, %s]}", profile, profile)
	}
	return k, nil
}
