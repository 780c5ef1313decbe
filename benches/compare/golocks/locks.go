package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// locks waits for the lock of a key, and returns its release.
type locks func(key string) (release func() error, err error)

// connect returns locks of a kind: rueidislock or redsync.
func connect(address, kind string) (locks, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "rueidislock":
		return rueidisLocks(parsed.Host)
	case "redsync":
		return redsyncLocks(parsed.Host), nil
	}
	return nil, fmt.Errorf("no such kind: %s", kind)
}

// rueidisLocks: one key per lock instead of three, because there is one server.
func rueidisLocks(address string) (locks, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address}},
		KeyMajority:  1,
	})
	if err != nil {
		return nil, err
	}
	return func(key string) (func() error, error) {
		_, cancel, err := locker.WithContext(context.Background(), key)
		// It returns before the reply to the release.
		return func() error { cancel(); return nil }, err
	}, nil
}

// redsyncLocks: the defaults, 32 tries of 50 to 250 ms, and again.
func redsyncLocks(address string) locks {
	client := redis.NewClient(&redis.Options{Addr: address})
	pool := redsync.New(goredis.NewPool(client))
	return func(key string) (func() error, error) {
		mutex := pool.NewMutex(key)
		for {
			err := mutex.Lock()
			var taken *redsync.ErrTaken
			if !errors.As(err, &taken) {
				return func() error { _, err := mutex.Unlock(); return err }, err
			}
		}
	}
}
