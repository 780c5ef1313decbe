package main

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// patience is how long after its window a job may take.
const patience = 10 * time.Second

// job: a number of clients lock, hold and unlock concurrently until the window ends.
type job struct {
	name     string
	inFlight int
	window   time.Duration
	hold     time.Duration
	// spread is the longest time that a client adds to its hold, at random.
	spread time.Duration
	// pause is how long a client sleeps after each release.
	pause time.Duration
	// sums has the sum of the weights up to each shared key, by Zipf's law. Empty: a new key per pair.
	sums []float64
}

func parse(line string) (job, error) {
	words := strings.Fields(line)
	if len(words) != 8 || words[7] != "exclusive" {
		return job{}, fmt.Errorf("no job for exclusive locks: %s", line)
	}
	var numbers [5]int
	for at := range numbers {
		number, err := strconv.Atoi(words[2+at])
		if err != nil {
			return job{}, err
		}
		numbers[at] = number
	}
	millis := func(at int) time.Duration { return time.Duration(numbers[at]) * time.Millisecond }
	parsed := job{name: words[1], inFlight: numbers[0], window: millis(1), hold: millis(2), spread: millis(3), pause: millis(4)}
	if words[0] == "new" {
		return parsed, nil
	}
	keys, err := strconv.Atoi(words[0])
	sum := 0.0
	for rank := 1; rank <= keys; rank++ {
		sum += 1 / float64(rank)
		parsed.sums = append(parsed.sums, sum)
	}
	return parsed, err
}

// key returns the key for the n-th pair of a client.
func (job *job) key(client, n int) string {
	if len(job.sums) == 0 {
		return fmt.Sprintf("%s:%d:%d", job.name, client, n)
	}
	point := rand.Float64() * job.sums[len(job.sums)-1]
	return fmt.Sprintf("%s:%d", job.name, sort.SearchFloat64s(job.sums, point))
}

// part has the observations of one client.
type part struct {
	waits    []time.Duration
	inWindow int
	err      error
}

func (job *job) run(locks locks) (string, error) {
	start := time.Now()
	parts := make(chan part, job.inFlight)
	for client := range job.inFlight {
		go func() { parts <- job.pairs(locks, client, start.Add(job.window)) }()
	}
	late := time.After(job.window + patience)
	waits := hdrhistogram.New(1, time.Hour.Nanoseconds(), 3)
	inWindow, least := 0, -1
	for range job.inFlight {
		select {
		case part := <-parts:
			if part.err != nil {
				return "", part.err
			}
			inWindow += part.inWindow
			if least < 0 || part.inWindow < least {
				least = part.inWindow
			}
			for _, wait := range part.waits {
				if err := waits.RecordValue(wait.Nanoseconds()); err != nil {
					return "", err
				}
			}
		case <-late:
			return "", fmt.Errorf("a client waits longer than %v", patience)
		}
	}
	seconds := time.Since(start).Seconds()
	text, err := waits.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return fmt.Sprintf("%d %d %d %f %s", waits.TotalCount(), inWindow, least, seconds, text), err
}

// pairs locks, holds and unlocks until the end.
func (job *job) pairs(locks locks, client int, end time.Time) (part part) {
	for asked := time.Now(); asked.Before(end); asked = time.Now() {
		release, err := locks(job.key(client, len(part.waits)))
		if err != nil {
			part.err = err
			return
		}
		granted := time.Now()
		part.waits = append(part.waits, granted.Sub(asked))
		if granted.Before(end) {
			part.inWindow++
		}
		if hold := job.hold + time.Duration(rand.Float64()*float64(job.spread)); hold > 0 {
			time.Sleep(hold)
		}
		if err := release(); err != nil {
			part.err = err
			return
		}
		if job.pause > 0 {
			time.Sleep(job.pause)
		}
	}
	return
}
